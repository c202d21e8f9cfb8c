#!/usr/bin/env bash
# The test itself, run by the container's systemd. Every step is a command with its output, or an
# expectation; the first unmet one ends the test.
exec >/try/transcript 2>&1
set -euo pipefail
export PATH=$PATH:/usr/local/bin NO_COLOR=1 SYSTEMD_COLORS=0 SYSTEMD_PAGER=

step() { printf '\n# %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
expect() {
    local what=$1
    shift
    for _ in $(seq 200); do
        if "$@" >/dev/null 2>&1; then
            printf 'ok: %s\n' "$what"
            return
        fi
        sleep 0.1
    done
    printf 'NOT: %s (%s)\n' "$what" "$*"
    journalctl -u orind.service --no-pager -n 30
    exit 1
}
property() { systemctl show orind.service -P "$1"; }
is() { [[ $(property "$1") == "$2" ]]; }
journal() { journalctl -u orind.service --no-pager -o cat | grep -q -- "$1"; }
main() { property MainPID; }
says() { property StatusText | grep -q -- "$1"; }
# The service's main process is another one than $1.
follows() { [[ $(main) != "$1" && $(main) != 0 ]]; }
gone() { [[ $(main) == 0 ]] && ! systemctl is-active orind.socket; }

step "Install"
run /try/bin/orinctl install
run tee /etc/orind/orind.toml <<'TOML'
model = "synthetic:tiny-llama:q8_0"
backend = "cpu"
shutdown_deadline_s = 20
TOML
mkdir -p /etc/systemd/system/orind.service.d
run tee /etc/systemd/system/orind.service.d/try.conf <<'UNIT'
[Service]
WatchdogSec=4
UNIT
run systemctl daemon-reload
run systemctl enable --quiet --now orind.socket

step "Socket activation: the first client starts the daemon"
run stat -c '%A %U %G %n' /run/orind/orind.sock
expect "the service is not running" is ActiveState inactive
run orinctl status
expect "the service runs" is ActiveState active

step "Readiness: a start ends when the model is loaded"
run systemctl stop orind.service
run systemctl start orind.service
run systemctl show orind.service -P StatusText
expect "the model was loaded when the start was over" journal "model loaded"
expect "status says so" says "slots busy"

step "Who may talk to it"
if setpriv --reuid=nobody --regid=nogroup --clear-groups orinctl status; then exit 1; fi
expect "a member of group orind may" \
    setpriv --reuid=nobody --regid=nogroup --groups="$(getent group orind | cut -d: -f3)" orinctl status

step "Privileges"
run grep -E '^(Uid|Groups|CapEff|NoNewPrivs|Seccomp):' "/proc/$(main)/status"
run cat "/proc/$(main)/net/dev"
systemd-analyze security --no-pager orind.service | tail -n 1

step "Reload"
echo 'queue_limit = 5' >>/etc/orind/orind.toml
run systemctl reload orind.service
expect "the service runs" is ActiveState active
run orinctl status
expect "the log says what changed" journal 'reloaded key="queue_limit"'

step "SIGKILL of the main process: the socket stays, the next client waits for the next process"
first=$(main)
run kill -KILL "$first"
run orinctl status
expect "another process serves" follows "$first"
expect "it generates again" orinctl generate --quiet --max-tokens 4 'Once upon a time'
run systemctl show orind.service -P NRestarts

step "A hung engine: one thread is stopped from outside, the rest of the daemon runs"
second=$(main)
(/try/bin/freeze "$second" engine >/try/frozen || true) &
expect "the thread is stopped" grep -q frozen /try/frozen
run timeout 5 orinctl status
expect "the watchdog has ended it" journal "Watchdog timeout"
expect "another process serves" follows "$second"
expect "it generates again" orinctl generate --quiet --max-tokens 4 'Once upon a time'
journalctl -u orind.service --no-pager -o cat | grep -E 'Watchdog|Scheduled restart' | tail -n 2

step "An idle engine is left alone: three times the watchdog's patience"
restarts=$(property NRestarts)
run sleep 12
expect "nothing was restarted" is NRestarts "$restarts"

step "Drain: a stop lets the request in flight finish"
orinctl generate --quiet --ignore-eos --max-tokens 4000 'Once upon a time' >/try/answer &
client=$!
expect "it is served" says "1 of 4 slots busy"
run systemctl stop orind.service
run wait "$client"
expect "the service has ended well" is Result success
run wc -c /try/answer
expect "the socket is still there" systemctl is-active orind.socket
expect "the next client starts the daemon again" orinctl status

step "Uninstall"
run /try/bin/orinctl uninstall
expect "no unit is left" test ! -e /usr/local/lib/systemd/system/orind.service
expect "no daemon is left" gone
expect "the configuration is kept" test -e /etc/orind/orind.toml

touch /try/passed
