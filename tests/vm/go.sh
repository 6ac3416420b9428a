#!/bin/sh
# Stands for the go command in the machine, which has no compiler: "go build" and "go tool -n" hand out what was built before
# the machine started. What a test asks to be linked in, such as another version, is left out.
programs=/job/programs
root=$(cat $programs/root)

# name is the file that a package's program lies in; a folder of this module is named as its path.
name() {
	case $1 in
	github.com/weft-cni/weft/*) echo "${1#github.com/weft-cni/weft/}" | tr / - ;;
	github.com/*) echo "${1##*/}" ;;
	*) dir=$(cd "$1" && pwd) && dir=${dir#"$root"} && echo "weft$dir" | tr / - | sed 's/^weft-//' ;;
	esac
}

hand() {
	test -f "$programs/$1" || { echo "go: $1 was not built for the machine" >&2; exit 1; }
}

case "$1 ${2-}" in
"tool -n")
	hand "$3"
	echo "$programs/$3"
	exit
	;;
build\ *) shift ;;
*)
	echo "go: only build and tool -n are there" >&2
	exit 1
	;;
esac

out=.
while [ $# -gt 0 ]; do
	case $1 in
	-o) out=$2 && shift ;;
	-ldflags | -tags) shift ;;
	-*) ;;
	*) packages="${packages-} $1" ;;
	esac
	shift
done
for package in ${packages-.}; do
	file=$(name "$package")
	hand "$file"
	case $out in
	*/) cp "$programs/$file" "$out${package##*/}" ;;
	*) cp "$programs/$file" "$out" ;;
	esac
done
