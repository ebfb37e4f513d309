#!/bin/sh
# Installs what the lab, its build and its tests use, where it is missing.
set -eu

if [ -z "${KUBEBUILDER_ASSETS:-}" ] && ! command -v go >/dev/null 2>&1; then
    echo "the lab builds its control plane with Go 1.25 or later, and there is no go: install it from" >&2
    echo "https://go.dev/dl, or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver," >&2
    echo "kube-controller-manager and kube-proxy" >&2
    exit 1
fi

missing=
need() { # program package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need make make
need ip iproute2
need nft nftables
need ps procps
need cc gcc
# For libFuzzer, without which the fuzz targets are not checked.
need c++ g++
# A compiler may have come without the C library's files to link with.
links() {
    echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null
}
links || missing="$missing libc6-dev"
# For the registries of Rust and Go. (Other distributions have these certificates elsewhere.)
if command -v apt-get >/dev/null 2>&1 && [ -z "${SSL_CERT_FILE:-}" ]; then
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
fi

[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "missing:$missing; install them, or run this as root on Debian or Ubuntu" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing:$missing (Debian's package names); this machine has no apt-get, install them by hand" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of packages
apt-get install -qq -y --no-install-recommends $missing >/dev/null
