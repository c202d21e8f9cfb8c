# Adds the driver directory of NixOS to the rpath of every dynamically linked program and library.
addDriverRunpathEverywhere() {
    local output file
    for output in $(getAllOutputNames); do
        while IFS= read -r -d '' file; do
            if isELF "$file" && patchelf --print-rpath "$file" >/dev/null 2>&1; then
                addDriverRunpath "$file"
            fi
        done < <(find "${!output}" -type f -print0)
    done
}
postFixupHooks+=(addDriverRunpathEverywhere)
