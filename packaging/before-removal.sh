# Of every package, before its files are removed.
if [ -d /run/systemd/system ]; then
	systemctl disable --now justitia.service justitia-cache.service justitia-guest.service justitia-host.service
fi
# However the agent was started: restore what a killed agent has left, while the program is still installed. A failure says
# why, and the journal stays for the next try.
if [ -e /run/justitia/ledger ]; then justitia reset || true; fi
if [ -e /run/justitia/host/balloons ]; then justitia host reset || true; fi
