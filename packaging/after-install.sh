# Of every package, after its files are there. upgrade: not empty if another version was there before.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade goes on with what ran; a first installation waits to be asked: `systemctl enable --now justitia`. The
	# cache executes its new program, which VMs do not notice. Clients with TLS would: with them it goes on as it is.
	if [ -n "$upgrade" ]; then
		systemctl try-restart justitia.service justitia-guest.service justitia-host.service
		if systemctl --quiet is-active justitia-cache.service; then
			if grep -Eqs '^[[:space:]]*(\[[[:space:]]*)?tls' /etc/justitia/cache.toml; then
				echo "justitia: justitia-cache goes on with the program from before, since its clients may use TLS" \
					"and would be cut off. For the new one: systemctl restart justitia-cache" >&2
			else
				systemctl kill --kill-who=main -s USR2 justitia-cache.service
			fi
		fi
	fi
fi
