#!/usr/bin/env bash
# Evaluates the flake and the NixOS module: every output, and the cases of nixos/tests/module.nix.
#
#     bash nixos/check.sh
#
# With a network, it uses the nixpkgs of flake.lock. Without one, name a copy of nixpkgs' library
# (github:nix-community/nixpkgs.lib, or nixpkgs itself) in ORIND_NIXPKGS_LIB: then a stub replaces
# nixpkgs, nothing is fetched, and nothing can be built. If ORIND_JETPACK_NIXOS names a copy of
# jetpack-nixos, the example for the AGX Orin is evaluated with its options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v nix >/dev/null; then
    echo "nix is not installed: skipped"
    exit 0
fi
flags=(--extra-experimental-features 'nix-command flakes')
# Debian's nix-bin does not create the group of Nix' build users.
export NIX_CONFIG="${NIX_CONFIG:-}"$'\n'"build-users-group ="

for file in flake.nix $(git ls-files 'nixos/*.nix'); do
    nix-instantiate --parse "$file" >/dev/null
done
echo "every expression parses"

if [[ -z ${ORIND_NIXPKGS_LIB:-} ]]; then
    if nix "${flags[@]}" flake metadata nixpkgs >/dev/null 2>&1; then
        nix "${flags[@]}" flake check --no-build
        exit
    fi
    echo "nixpkgs cannot be fetched and ORIND_NIXPKGS_LIB is not set: no evaluation"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/nixpkgs" "$work/orind"
cp -r nixos/tests/nixpkgs/. "$ORIND_NIXPKGS_LIB/lib" "$work/nixpkgs"
# Files that git tracks: the flake sees no others.
git ls-files -z | xargs -0 cp --parents -t "$work/orind"
rm "$work/orind/flake.lock" # it locks the real nixpkgs

offline() {
    nix "${flags[@]}" "$@" --offline --no-write-lock-file \
        --override-input nixpkgs "path:$work/nixpkgs" >"$work/out" 2>"$work/log" && return
    cat "$work/log" >&2
    return 1
}
for system in x86_64-linux aarch64-linux; do
    offline build --dry-run "path:$work/orind#checks.$system.module"
    echo "the module's cases hold on $system"
done
offline flake check --no-build "path:$work/orind"
echo "every output of the flake evaluates"

# Runs the package's installation of systemd/, with stubs of the two nixpkgs functions it calls.
install=$(offline eval --raw "path:$work/orind#orind.postInstall" && cat "$work/out")
(
    substituteInPlace() {
        local file=$1
        shift
        while (($#)); do
            grep -qF "$2" "$file" || {
                echo "$file has no $2"
                exit 1
            }
            sed -i "s|$2|$3|g" "$file"
            shift 3
        done
    }
    moveToOutput() { :; }
    out=$work/installed sim=$work/installed
    cd "$work/orind"
    eval "$install"
    # The units contain no path of another distribution; NixOS has /bin/sh.
    if grep -nE '=[-+!:@]*/(usr|s?bin)/' "$out"/lib/systemd/system/* | grep -v '=/bin/sh '; then exit 1; fi
)
echo "the units are installed, with their paths in the store"

if [[ -n ${ORIND_JETPACK_NIXOS:-} ]]; then
    nix-instantiate --eval --strict nixos/tests/example.nix \
        --argstr nixpkgs "$work/nixpkgs" --argstr jetpack "$(realpath "$ORIND_JETPACK_NIXOS")" >/dev/null
    echo "the example for the AGX Orin fits jetpack-nixos"
fi
