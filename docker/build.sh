#!/bin/sh
# Build the image without a container engine and without an image registry: buildah runs the
# Dockerfile in a chroot, on a Debian 13 that debootstrap makes. Needs root.
#
#   docker/build.sh [OPTION]...     # options of "buildah build", such as --volume or --build-arg
#
# The image is localhost/potash in root's storage of buildah. The base is kept there as well, as
# localhost/potash-base; without it, the next build makes it again. The Debian archive is
# POTASH_DEBIAN_MIRROR, or the one that apt is configured with.
set -eu

RELEASE=trixie
BASE=localhost/potash-base
export STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}" BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}"

die() {
    echo "docker/build.sh: $1" >&2
    exit 1
}

make_base() {
    address=${POTASH_DEBIAN_MIRROR:-$(
        apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$'
    )} || die "apt has no address of a Debian archive; set POTASH_DEBIAN_MIRROR"
    container=$(buildah from scratch)
    trap 'buildah rm "$container" >/dev/null' EXIT
    debootstrap --variant=minbase --include=ca-certificates "$RELEASE" "$(buildah mount "$container")" "$address"
    buildah umount "$container" >/dev/null
    buildah commit --quiet "$container" "$BASE"
    buildah rm "$container" >/dev/null
    trap - EXIT
}

[ "$(id -u)" = 0 ] || die "run it as root: debootstrap and chroot need that"
for tool in buildah debootstrap; do
    command -v "$tool" >/dev/null || die "$tool is missing: apt install buildah debootstrap"
done
cd "$(dirname "$0")/.."
buildah inspect --type image "$BASE" >/dev/null 2>&1 || make_base
exec buildah build --from "$BASE" --file docker/Dockerfile --tag localhost/potash "$@" .
