#!/bin/sh
# Make a Debian 13 into a machine that runs all of Potash: its demo, its guest, its tests.
#
#   docker/setup.sh system    as root: the packages, QEMU from backports, a user "potash"
#   docker/setup.sh checkout  as that user, in the checkout: Python's environment, the guest's Linux
#
# The Dockerfile runs both. The Debian archive is the one that this system's own apt names; where pip
# finds packages is pip's own affair (PIP_INDEX_URL and the like, as build arguments).
set -eu

RELEASE=trixie
PACKAGES="ca-certificates clang cpio debian-archive-keyring dpkg-dev gcc git libc6-dev llvm make procps
  python3 python3-venv xz-utils zstd"
FROM_BACKPORTS="qemu-system-x86"
NEW_USER=potash

die() {
    echo "docker/setup.sh: $1" >&2
    exit 1
}

# The address that apt has for the release, from either format of its lists.
archive() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        sed -n 's/\[[^]]*\] *//; s/^deb  *\([^ ]*\)  *'"$RELEASE"'  *.*main.*/\1/p; s/^URIs: *\([^ ]*\).*/\1/p' |
        head -n 1
}

system() {
    [ "$(id -u)" = 0 ] || die "'system' installs packages, and needs root"
    . /etc/os-release
    [ "${VERSION_CODENAME:-}" = "$RELEASE" ] || die "this is not Debian 13 ($RELEASE)"
    address=$(archive)
    [ -n "$address" ] || die "apt has no address of a Debian archive"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $address $RELEASE-backports main" \
        >/etc/apt/sources.list.d/backports.list
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086  # they are several
    apt-get install -y -q --no-install-recommends $PACKAGES
    apt-get install -y -q --no-install-recommends -t "$RELEASE-backports" $FROM_BACKPORTS
    apt-get clean
    id "$NEW_USER" >/dev/null 2>&1 || useradd --create-home --uid 1000 --shell /bin/bash "$NEW_USER"
    # A volume at this place takes over whose it is: the socket is for this user alone.
    install -d -m 0700 -o "$NEW_USER" -g "$NEW_USER" /run/potash /var/lib/potash
}

checkout() {
    [ "$(id -u)" != 0 ] || die "'checkout' is for the user $NEW_USER; nothing of it needs root"
    make setup
    # Brings the guest's Linux, and boots it once: the first start of a container is a fast one.
    .venv/bin/potash guest -- true
}

case "${1:-}" in
system) system ;;
checkout) checkout ;;
*) die "say 'system' or 'checkout'" ;;
esac
