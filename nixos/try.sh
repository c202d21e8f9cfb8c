#!/usr/bin/env bash
# Builds and runs the flake's outputs with the real `nix`, on a machine that reaches neither nixpkgs nor
# its cache. With a network, `nix build`, `nix run` and `nix develop` do the same.
#
#     ORIND_NIXPKGS_CORE=DIR nixos/try.sh
#
# DIR: a checkout of github:auxolotl/core, nixpkgs 24.05 reduced to its builders. They replace nixpkgs and
# use the programs of this machine (nixos/tests/nixpkgs-host), in Nix' sandbox. cargo and pip fetch crates
# and NVIDIA's wheel and add them to the store, where Nix finds them only if their hashes match the flake.
# Needs a Debian, root, gcc for this processor and for aarch64, the Rust of rust-toolchain.toml for both,
# patchelf, unzip, jq and python3. It builds the workspace twice with optimisation: 21 minutes of CPU time.
#
# Prints commands with their output, and fails at the first unmet expectation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
core=$(realpath "${ORIND_NIXPKGS_CORE:?names no checkout of github:auxolotl/core}")
for program in nix cargo patchelf unzip jq python3 aarch64-linux-gnu-gcc; do
    command -v "$program" >/dev/null || {
        echo "$program is missing" >&2
        exit 1
    }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sysroot=$(realpath "$(rustc --print sysroot)")
# Builds reach no network, and see only the programs of this machine.
export NO_COLOR=1 NIX_CONFIG="
extra-experimental-features = nix-command flakes
build-users-group =
substitute = false
sandbox = true
sandbox-fallback = false
sandbox-paths = /usr /bin /lib /lib64 /etc/alternatives $sysroot
"

# Path that replaces nixpkgs.
mkdir "$work/nixpkgs"
cp -r nixos/tests/nixpkgs-host/. "$work/nixpkgs"
cp -r "$core" "$work/nixpkgs/core"
cp nixos/tests/nixpkgs/nixos.nix "$work/nixpkgs"
version=$(rustc --version | cut -d' ' -f2)
for program in cargo cargo-clippy cargo-fmt clippy-driver rust-analyzer rustc rustdoc rustfmt \
    bash cargo-deny curl diff jq nix patchelf python3 unzip; do
    if path=$(PATH=$sysroot/bin:/usr/local/bin:/usr/bin:/bin command -v "$program"); then
        echo "$program $path"
    fi
done | jq -Rn --arg sysroot "$sysroot" --arg version "$version" \
    '{$sysroot, $version, programs: [inputs | split(" ") | {key: .[0], value: .[1]}] | from_entries}' \
    >"$work/nixpkgs/host.json"

# Files that a build would fetch, under their names in the store.
mkdir "$work/fetched"
cargo fetch --quiet --locked
sed -n 's/^name = "\(.*\)"/\1/p; s/^version = "\(.*\)"/\1/p' Cargo.lock | paste -d' ' - - |
    while read -r name version; do
        for crate in "${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"$name-$version.crate"; do
            [[ ! -e $crate ]] || cp "$crate" "$work/fetched/crate-$name-$version.tar.gz"
        done
    done
version=$(sed -n 's/^  version = "\(.*\)";$/\1/p' nixos/nvrtc.nix)
python3 -m pip download --quiet --no-deps --dest "$work/fetched" "nvidia-cuda-nvrtc-cu12==$version"
nix-store --add-fixed sha256 "$work"/fetched/* >/dev/null

failed=
step() { printf '\n# %s\n' "$*"; }
run() {
    printf '$ %s\n' "$*"
    case $1 in
    nix) flake "${@:2}" 2>"$work/log" || {
        tail -n 40 "$work/log"
        exit 1
    } ;;
    *) "$@" ;;
    esac
}
# `nix` with nixpkgs replaced.
flake() {
    nix "$1" --override-input nixpkgs "path:$work/nixpkgs" --no-write-lock-file --offline "${@:2}"
}
expect() {
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        printf 'ok: %s\n' "$what"
    else
        printf 'NOT: %s (%s)\n' "$what" "$*"
        cat "$work/log"
        failed=yes
    fi
}
is() { [[ $1 == "$2" ]]; }
not() { ! "$@"; }
# An unknown key is only a warning.
verified() {
    local said
    said=$(systemd-analyze verify "$@" 2>&1) || return
    echo "$said"
    [[ -z $said ]]
}

step "The package"
run nix build --out-link "$work/result" .
out=$(realpath "$work/result")
run ls "$out/bin"
expect "no other program is in it" is "$(ls "$out/bin")" $'orinctl\norind'
expect "the unit starts it" grep -q "^ExecStart=$out/bin/orind " "$out/lib/systemd/system/orind.service"
expect "systemd accepts the units" verified "$out"/lib/systemd/system/orind.{service,socket}
for file in lib/sysusers.d/orind.conf lib/tmpfiles.d/orind.conf lib/udev/rules.d/70-orind.rules \
    share/orind/drop-ins/cuda.conf share/orind/drop-ins/tcp.conf; do
    expect "there is $file" test -s "$out/$file"
done
expect "libcuda is searched in the driver directory of NixOS" \
    is "$(patchelf --print-rpath "$out/bin/orind" | cut -d: -f1)" /run/opengl-driver/lib
expect "it refers to no other store path" is "$(nix-store -q --references "$out")" "$out"
expect "it contains no path of this checkout, home or Rust" \
    not grep -rqF -e "$PWD" -e "$HOME/" -e "$sysroot" "$out"

step "A benchmark"
run nix run . -- bench -m synthetic:tiny-llama:q8_0 -p 16 -n 8 -r 2
expect "orind runs" flake run .#orind -- --version

step "The simulated Orin"
run nix build --out-link "$work/result" .#tegra-sim
run ls "$work/result-sim/bin" "$work/result-sim/lib"
run nix run .#tegra-sim -- run -- "$out/bin/orinctl" bench --backend nv -m synthetic:tiny-llama:q8_0 -p 16 -n 8 -r 2

step "A system with the service"
# Without the commit, which `.` also lacks if nixpkgs is overridden: the package would differ.
mkdir "$work/orind"
git ls-files -z | xargs -0 cp --parents -t "$work/orind"
nix build --out-link "$work/machine" "path:$work/orind/nixos/tests/machine" --offline --no-write-lock-file \
    --override-input orind "path:$work/orind" --override-input orind/nixpkgs "path:$work/nixpkgs" 2>"$work/log" || {
    tail -n 40 "$work/log"
    exit 1
}
run cat "$work/machine/orind.toml"
expect "the daemon accepts its configuration" "$out/bin/orind" --config "$work/machine/orind.toml" --check
run ls "$work"/machine/*.d
expect "systemd accepts its units" verified "$work"/machine/orind.{service,socket}

step "The shell"
shell() { flake develop -c "$@"; }
run nix develop -c cargo --version
for program in cargo rustc clippy-driver rustfmt jq; do
    expect "$program is from the store" shell bash -c "[[ \$(command -v $program) == /nix/store/* ]]"
done
expect "LD_LIBRARY_PATH is not set" shell bash -c '[[ ! -v LD_LIBRARY_PATH ]]'
expect "the code is formatted" shell cargo fmt --all --check
expect "a lint" shell cargo clippy --locked -p orind-kernels -- -D warnings
run nix develop -c cargo test --quiet --locked -p orind-kernels --test suite prebuilt
expect "NVRTC compiles the kernels" shell cargo run --locked -p orind-kernels -- build
expect "the bytes equal kernels/prebuilt" git diff --exit-code kernels/prebuilt
expect "a program built there searches libcuda there" \
    grep -qF /run/opengl-driver/lib "${CARGO_TARGET_DIR:-target}/debug/orind-kernels"

step "The daemon for the Orin"
run nix build --out-link "$work/result" .#orind-aarch64
cross=$(realpath "$work/result")
expect "it is for aarch64" bash -c "readelf -h $cross/bin/orind | grep AArch64"
expect "its unit starts it" grep -q "^ExecStart=$cross/bin/orind " "$cross/lib/systemd/system/orind.service"
if command -v qemu-aarch64 >/dev/null; then
    run qemu-aarch64 -L /usr/aarch64-linux-gnu "$cross/bin/orind" --version
fi

if [[ -n $failed ]]; then
    printf '\nFAILED\n'
    exit 1
fi
printf '\nall expectations held\n'
