if command -v unshare >/dev/null && unshare -Urm /bin/sh -c 'mount -t tmpfs none /tmp' 2>/dev/null
then echo "PROBE PV-25 BROKEN: mount in a nested user and mount namespace"
else echo "PROBE PV-25 HELD"
fi
