# Every dynamically linked program and library of the package looks for the drivers of NixOS too.
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
