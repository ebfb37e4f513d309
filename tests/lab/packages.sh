#!/bin/sh
# Installs the programs that the lab, its build and its tests use, where they are missing.
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
need ip iproute2
need nft nftables
need cc gcc
need ps procps

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
