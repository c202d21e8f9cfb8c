#!/usr/bin/env bash
# Tests the service in a booted systemd: a Debian in a container that has only the programs of this
# machine. Needs root, debootstrap and systemd-nspawn; takes a minute once the image exists.
#
#     systemd/try.sh [IMAGE]        IMAGE: a directory, created if missing
#
# Prints commands with their output, and fails at the first unmet expectation.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
image=${1:-/var/tmp/orind-image}
build=${CARGO_TARGET_DIR:-$here/../target}/${PROFILE:-debug}

for program in "$build/orind" "$build/orinctl" "$build/examples/freeze"; do
    [[ -x $program ]] || {
        echo "$program is missing: cargo build --bins && cargo build --example freeze" >&2
        exit 1
    }
done
if [[ ! -x $image/usr/lib/systemd/systemd ]]; then
    debootstrap --variant=minbase --include=systemd,systemd-sysv,udev,dbus bookworm "$image"
fi

share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
mkdir "$share/bin"
cp "$build/orind" "$build/orinctl" "$build/examples/freeze" "$here/try-inside.sh" "$share/bin/"
mkdir -p "$image/etc/systemd/system/multi-user.target.wants"
cat >"$image/etc/systemd/system/try.service" <<'UNIT'
[Unit]
Description=The trial
[Service]
Type=oneshot
ExecStart=/bin/bash /try/bin/try-inside.sh
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=null
StandardError=journal
UNIT
ln -sf ../try.service "$image/etc/systemd/system/multi-user.target.wants/try.service"

# Changes to the container's file system are discarded afterwards.
timeout 300 systemd-nspawn --quiet --boot --register=no --keep-unit --volatile=overlay \
    --directory="$image" --bind="$share:/try" --console=pipe >"$share/console" 2>&1 </dev/null || true
cat "$share/transcript"
if [[ ! -e $share/passed ]]; then
    echo "FAILED; the console:" >&2
    tail -n 30 "$share/console" >&2
    exit 1
fi
