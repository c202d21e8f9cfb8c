#!/bin/sh
# The part of .ci/deb-try that runs in the container. Each expectation is printed; the first unmet one ends it.
exec >/try/transcript 2>&1
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin

expect() {
    what=$1
    shift
    if "$@"; then
        echo "ok: $what"
    else
        echo "NOT ok: $what"
        exit 1
    fi
}
absent() {
    for path in "$@"; do [ ! -e "$path" ] || { echo "$path exists" && return 1; }; done
}
booted() {
    [ -d /run/systemd/system ]
}

if command -v lintian >/dev/null; then
    expect "lintian has no errors and warnings" lintian --allow-root --fail-on error,warning /try/new.deb
fi
expect "the package installs" apt-get install -y --no-install-recommends /try/old.deb
expect "the user exists" getent passwd orind
expect "models have a directory of that user" [ "$(stat -c %U:%a /var/lib/orind/models)" = orind:755 ]
expect "the daemon runs" orind --version
expect "the client runs" orinctl --version
expect "manual and completions are there" [ -e /usr/share/man/man1/orinctl-bench.1.gz -a -e /usr/share/bash-completion/completions/orinctl ]
expect "the units are valid" systemd-analyze verify /usr/lib/systemd/system/orind.socket /usr/lib/systemd/system/orind.service
expect "socket and service are enabled" systemctl is-enabled orind.socket orind.service
if booted; then
    expect "the socket listens" systemctl is-active orind.socket
    expect "a client starts the daemon" orinctl status
    expect "the service runs" systemctl is-active orind.service
fi

echo 'model = "synthetic:tiny-llama:q8_0"' >>/etc/orind/orind.toml
sum=$(md5sum /etc/orind/orind.toml)
touch /var/lib/orind/models/mine.gguf
systemctl disable orind.service 2>/dev/null
expect "an update installs" apt-get install -y --no-install-recommends /try/new.deb
expect "the configuration is kept" [ "$(md5sum /etc/orind/orind.toml)" = "$sum" ]
expect "a disabled service stays disabled" [ "$(systemctl is-enabled orind.service)" = disabled ]
if booted; then
    expect "the socket stays open" systemctl is-active orind.socket
    expect "the daemon answers" orinctl status
fi

expect "the package is removed" apt-get remove -y orind
expect "its programs and units are gone" absent /usr/bin/orind /usr/bin/orinctl /usr/lib/systemd/system/orind.service
expect "the configuration stays" [ -e /etc/orind/orind.toml ]
if booted; then
    expect "the daemon has ended" sh -c '! pgrep -x orind'
fi
expect "it installs again" apt-get install -y --no-install-recommends /try/new.deb
expect "the configuration is the same" [ "$(md5sum /etc/orind/orind.toml)" = "$sum" ]
expect "the package is purged" apt-get purge -y orind
expect "configuration, state and caches are gone" absent /etc/orind /var/cache/orind /usr/share/orind /usr/share/doc/orind
expect "models stay" [ -e /var/lib/orind/models/mine.gguf ]
rm /var/lib/orind/models/mine.gguf
expect "no link to a unit remains" [ -z "$(find /etc/systemd -name 'orind*')" ]
touch /try/passed
echo "all as expected"
