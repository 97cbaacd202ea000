# Sourced by every script in the guest (busybox sh). The image is at /debian.
C=/sys/fs/cgroup
disk() { for disk in /sys/block/vd*; do [ "$(cat $disk/serial)" != $1 ] || echo /dev/${disk##*/}; done; }
# Runs a command of the image.
debian() { chroot /debian /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
# Runs a command of the image in the container $1.
into() { sh -c 'echo $$ >"$0/cgroup.procs" && shift && . /run/lib && debian "$@"' "$C/$1" "$@"; }
await() { tries=0; until "$@" >/dev/null 2>&1; do tries=$((tries + 1)); [ $tries -lt 600 ] || return 1; usleep 200000; done; }

redis() { debian redis-cli -s /run/redis.sock "$@"; }
mariadb() { debian mariadb --socket=/run/mariadb.sock "$@"; }
postgres() { debian psql -q -h /run -U postgres "$@"; }

mounts() {
	mkdir -p /debian && mount $(disk root) /debian && mount --bind /proc /debian/proc && mount --bind /dev /debian/dev &&
		mount --bind /sys /debian/sys && mount -t tmpfs -o mode=1777 run /debian/run &&
		mkswap $(disk swap) >/dev/null && swapon $(disk swap)
	while read -r name percent; do
		mkdir -p $C/$name && echo $((percent * 1000)) 100000 >$C/$name/cpu.max
	done <<-END
		redis 20
		mariadb 20
		postgres 30
		web 50
	END
	mkdir -p /debian/run/postgresql && chmod 777 /debian/run/postgresql
}

# The guest agent, until it offers the disk.
guest() {
	justitia guest --json 10 >/run/guest.json 2>>/run/guest.log &
	await grep 'offered to the host' /run/guest.log
}

# `fill_NAME` starts a store in its container and brings what it has into memory: $KEYS keys of 1,000 bytes, $ROWS rows of
# 189 bytes; of PostgreSQL and the web server every file, read once.
fill_redis() {
	into redis redis-server --port 0 --unixsocket /run/redis.sock --save '' >/run/redis.log 2>&1 &
	await redis ping || { echo 'Redis does not answer' >&2; return 1; }
	redis eval "local v = string.rep('x', 1000) for i = 0, $KEYS - 1 do redis.call('set', string.format('key:%012d', i), v) end" 0
}

fill_mariadb() {
	into mariadb mariadbd --user=mysql --skip-networking --socket=/run/mariadb.sock --pid-file=/run/mariadb.pid --performance-schema=off --skip-log-bin \
		--innodb-buffer-pool-size=8M --innodb-log-buffer-size=2M --key-buffer-size=1M --aria-pagecache-buffer-size=1M \
		--max-heap-table-size=1G --max-connections=10 >/run/mariadb.log 2>&1 &
	await mariadb -e 'select 1' || { echo 'MariaDB does not answer' >&2; return 1; }
	mariadb -e "create database if not exists sbtest; use sbtest; drop table if exists sbtest1;
		create table sbtest1 (id int primary key, k int, c char(120), pad char(60)) engine=memory charset=latin1;
		insert into sbtest1 select seq, seq, repeat('c', 120), repeat('p', 60) from seq_1_to_$ROWS;" ||
		{ echo "MariaDB's client ended with $?" >&2; return 1; }
}

fill_postgres() {
	into postgres setpriv --reuid=postgres --regid=postgres --clear-groups \
		/usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/db -k /run >/run/postgres.log 2>&1 &
	await postgres -c 'select 1' || { echo 'PostgreSQL does not answer' >&2; return 1; }
	into postgres sh -c 'cat /var/lib/postgresql/db/base/*/* >/dev/null'
}

fill_web() { web --phase warm >/dev/null; }

web() {
	sh -c 'echo $$ >"$0/web/cgroup.procs" && exec justitia-load webserver --dir /debian/srv/web "$@"' $C \
		--files $FILES --mean-size 64k --threads 8 --interval 0 "$@"
}

# `client_NAME` runs a store's client for $1 seconds, in its container; prints `NAME operations-a-second`.
client_redis() {
	done=$(redis info commandstats | sed -n 's/^cmdstat_get:calls=\([0-9]*\).*/\1/p') from=$(cut -d' ' -f1 /proc/uptime)
	into redis timeout -s KILL $1 redis-benchmark -s /run/redis.sock -t get -r $KEYS -n 1000000000 -c 4 -q >/dev/null 2>&1
	to=$(redis info commandstats | sed -n 's/^cmdstat_get:calls=\([0-9]*\).*/\1/p')
	echo redis $from $(cut -d' ' -f1 /proc/uptime) ${done:-0} ${to:-0} | awk '{ printf "redis %.1f\n", ($5 - $4) / ($3 - $2) }'
}

client_mariadb() {
	into mariadb sysbench oltp_point_select --mysql-socket=/run/mariadb.sock --mysql-user=root --mysql-db=sbtest --tables=1 \
		--table-size=$ROWS --rand-type=uniform --threads=2 --time=$1 run 2>&1 |
		sed -n 's/.*transactions:.*(\([0-9.]*\) per sec.*/mariadb \1/p'
}

client_postgres() {
	into postgres sh -c "printf '%s\n' '\set id random(1, $DOCUMENTS)' 'select body from document where id = :id;' >/run/point.sql
		pgbench -n -M prepared -h /run -U postgres -c 4 -T $1 -f /run/point.sql postgres" 2>/run/pgbench.log |
		sed -n 's/^tps = \([0-9.]*\).*/postgres \1/p'
}

client_web() {
	web --phase run --duration $1 | sed -n 's/.*"final".*"seconds":\([0-9.]*\),.*"operations":\([0-9]*\),.*/\1 \2/p' |
		awk '{ printf "web %.1f\n", $2 / $1 }'
}

# The clients of all for $1 seconds, at once.
clients() {
	for name in redis mariadb postgres web; do client_$name $1 >/run/$name.out & done
	wait
	cat /run/redis.out /run/mariadb.out /run/postgres.out /run/web.out
}

# What the processors did so far, in hundredths of a second: busy, idle.
processors() { awk '$1 == "cpu" { print "processors", $2 + $3 + $4 + $7 + $8, $5 + $6 }' /proc/stat; }

# `memory NAME bytes swapped`, of each container.
memory() {
	for name in redis mariadb postgres web; do
		echo memory $name $(cat $C/$name/memory.current $C/$name/memory.swap.current)
	done
}
