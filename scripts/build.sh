#!/usr/bin/env bash
# build.sh FILE: the program as it is released and put into the image: for Linux on GOARCH, static, and
# the same bytes wherever and whenever it is built from the same source with the same Go. VERSION and
# REVISION are for where the source comes without its history.
#
# It is a third smaller than what "go build -ldflags='-s -w'" makes: 21 MB, not 32. kong calls methods by names that the
# linker cannot see, which keeps every method of every package in the program (alecthomas/kong#547 on GitHub).
# Here these names are spelled out, in a copy of kong; it does the same. The tag leaves out golang.org/x/net/trace,
# whose templates have the same effect, and which nobody looks at here. What else has it:
# go build -ldflags=-dumpdep ./cmd/rlsidecar 2>&1 | grep 'ReflectMethod> ->'
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: build.sh FILE}

work=.build # what is in here is recorded in the program, by this path: it must not change
rm -rf $work
mkdir $work
trap 'rm -rf $work' EXIT
cp -r "$(go list -m -f '{{.Dir}}' github.com/alecthomas/kong)" $work/kong
chmod -R u+w $work/kong
cp go.sum $work/
cp go.mod $work/
go mod edit -replace github.com/alecthomas/kong=./$work/kong $work/go.mod

# change FILE OLD NEW…
change() {
  local file=$work/kong/$1
  shift
  while [ $# -gt 0 ]; do
    grep -qF "$1" "$file" || { echo "build.sh: kong no longer says '$1'; see what has become of it" >&2; exit 1; }
    sed -i "s/$1/$2/g" "$file" # dots match themselves
    shift 2
  done
}
change callbacks.go \
  'value.MethodByName(name)' 'valueMethod(value, name)' \
  'value.Addr().MethodByName(name)' 'valueMethod(value.Addr(), name)' \
  't.MethodByName(name)' 'typeMethod(t, name)'
change context.go 'p.NumMethod()' '0' 't.Method(i)' 'reflect.Method{}' 'p.Method(i)' 'reflect.Value{}' # providers: there are none
# Every configuration of Envoy has the method that kong looks for in commands; ours have none.
! grep -rqF ') Validate(' cmd/rlsidecar || { echo "build.sh: a command has a method Validate, which would not be called" >&2; exit 1; }
change context.go 'interface{ Validate() error }' 'interface{ kongValidate() error }' 'validate.Validate)' 'validate.kongValidate)'

# dispatch FUNCTION PARAMETER RESULTS: a function with a case for each name that kong asks for.
dispatch() {
  echo "func $1($2, name string) $3 {"
  echo 'switch name {'
  for name in Run BeforeReset BeforeResolve BeforeApply AfterApply AfterRun; do
    echo "case \"$name\": return ${2%% *}.MethodByName(\"$name\")"
  done
  echo '}; panic("kong asks for the method " + name) }'
}
{ dispatch valueMethod 'v reflect.Value' reflect.Value; dispatch typeMethod 't reflect.Type' '(reflect.Method, bool)'; } \
  >>$work/kong/callbacks.go

link="-s -w"
[ -z "${VERSION:-}" ] || link+=" -X 'main.linkedVersion=$VERSION' -X 'main.linkedRevision=${REVISION:-}'"
CGO_ENABLED=0 GOOS=linux go build -modfile=$work/go.mod -trimpath -buildvcs=false -tags grpcnotrace \
  -ldflags "$link" -o "$out" ./cmd/rlsidecar
