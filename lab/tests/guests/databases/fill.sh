# Run once in the image, as root: PostgreSQL's database, made by a server that takes its input from here and then ends.
set -e
db=/var/lib/postgresql/db
as() { su postgres -s /bin/sh -c "$1"; }
as "/usr/lib/postgresql/15/bin/initdb -D $db -A trust --no-sync >/dev/null"
cat >>$db/postgresql.conf <<'END'
listen_addresses = ''
shared_buffers = 4MB
max_connections = 10
autovacuum = off
max_wal_size = 64MB
END
cat >/tmp/fill.sql <<END
create table document as select n as id, rpad(md5(n::text), 120, 'x') as body from generate_series(1, $1) n;
alter table document add primary key (id);
vacuum freeze document;
checkpoint;
END
as "/usr/lib/postgresql/15/bin/postgres --single -F -D $db postgres </tmp/fill.sql >/dev/null"
rm /tmp/fill.sql
apt-get clean
