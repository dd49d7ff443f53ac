#!/bin/sh
# Makes Debian packages of what `make install` installs: moe-toolkit, the programs with their pages, profiles and
# completions, and libmoe-dev, the library. tests/packages/deb.sh OUT, called by `make deb`; $BUILD is the build.
# The packages depend on what their programs are linked with (dpkg-shlibdeps), so they are for this release.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
OUT=$1
VERSION=$(sed -n 's/^VERSION := //p' Makefile)
ARCH=$(dpkg --print-architecture)
MAINTAINER="${DEBFULLNAME:-The moe-toolkit authors} <${DEBEMAIL:-authors@moe-toolkit.example}>"
# The same sources give the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Makefile)}
export SOURCE_DATE_EPOCH
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
umask 022

depends() { # FILE...: the packages that these need
    (cd "$stage" && dpkg-shlibdeps -O -l"$programs/usr/lib/moe-toolkit" --ignore-missing-info "$@" 2>"$stage/shlibdeps.log") | sed -n 's/^shlibs:Depends=//p'
}

finish() { # PACKAGE SECTION DEPENDS SUMMARY; the long text on standard input
    root=$stage/$1
    doc=$root/usr/share/doc/$1
    mkdir -p "$doc" "$root/DEBIAN"
    {
        echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
        echo "Upstream-Name: moe-toolkit"
        echo
        echo "Files: *"
        sed -n 's/^Copyright (c) /Copyright: /p' LICENSE
        echo "License: Expat"
        sed '1,/^Copyright/d; /./!d; s/^/ /' LICENSE
    } >"$doc/copyright"
    {
        echo "moe-toolkit ($VERSION) unstable; urgency=medium"
        echo
        echo "  * Version $VERSION."
        echo
        echo " -- $MAINTAINER  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } | gzip -9n >"$doc/changelog.gz"
    find "$root/usr/share/man" -type f -exec gzip -9n {} + 2>/dev/null || :
    find "$root" -name '*.sh' -path '*profiles*' -exec chmod 755 {} +
    {
        echo "Package: $1"
        echo "Source: moe-toolkit"
        echo "Version: $VERSION"
        echo "Architecture: $ARCH"
        echo "Maintainer: $MAINTAINER"
        echo "Installed-Size: $(du -k -s --apparent-size "$root/usr" | cut -f 1)"
        echo "Depends: $3"
        echo "Section: $2"
        echo "Priority: optional"
        echo "Description: $4"
        sed 's/^$/./; s/^/ /'
    } >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f | LC_ALL=C sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -b "$root" "$OUT/${1}_${VERSION}_$ARCH.deb"
}

mkdir -p "$OUT" "$stage/debian"
printf 'Source: moe-toolkit\n\nPackage: moe-toolkit\nArchitecture: any\n' >"$stage/debian/control"
programs=$stage/moe-toolkit
library=$stage/libmoe-dev
lib=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
${MAKE:-make} -s install DESTDIR="$programs" PREFIX=/usr LIB="$lib"
mkdir -p "$library/usr/$lib" "$library/usr/share/doc/libmoe-dev"
mv "$programs/usr/include" "$library/usr/"
mv "$programs/usr/$lib/libmoe.a" "$programs/usr/$lib/pkgconfig" "$programs/usr/$lib/cmake" "$library/usr/$lib/"
mkdir -p "$library/usr/share/man"
mv "$programs/usr/share/man/man3" "$library/usr/share/man/"
mv "$programs/usr/share/doc/moe-toolkit/examples" "$library/usr/share/doc/libmoe-dev/"
rmdir -p "$programs/usr/$lib" 2>/dev/null || :

if [ -e "$programs/usr/lib/moe-toolkit/libmoe-cuda.so" ]; then
    # cuBLAS is loaded at run time from NVIDIA's own directory.
    mkdir -p "$programs/usr/share/lintian/overrides"
    echo 'moe-toolkit: custom-library-search-path RUNPATH /usr/local/cuda* [usr/lib/moe-toolkit/libmoe-cuda.so]' \
        >"$programs/usr/share/lintian/overrides/moe-toolkit"
fi
finish moe-toolkit science "$(depends $(find "$programs/usr/bin" "$programs/usr/lib" -type f ! -path '*/systemd/*' 2>/dev/null))" \
    "run Mixture-of-Experts language models within a memory budget" <<'END'
A Mixture-of-Experts language model uses a few percent of its weights
for a token but needs all of them at hand. These programs run such models
in the memory that the user names, with experts read from disk ahead of
their use: moe-quantize makes packs of checkpoints, moe-profile measures
models and machines, moe-calibrate finds precisions, moe-plan splits the
memory, moe-run answers, moe-serve answers many.
END
# What the library is linked with, by its pkg-config file.
needs=
for name in $(sed -n 's/^Libs.private: //p' "$library/usr/$lib/pkgconfig/moe.pc" | tr ' ' '\n' | sed -n 's/^-l//p'); do
    file=$(${CC:-cc} -print-file-name="lib$name.so")
    [ -e "$file" ] || continue
    file=$(cd "$(dirname "$file")" && pwd -P)/lib$name.so
    package=$(dpkg -S "$file" 2>/dev/null | sed 's/:.*//')
    case ", $needs, " in
    *", $package, "*) ;;
    *) needs="$needs${package:+${needs:+, }$package}" ;;
    esac
done
finish libmoe-dev libdevel "$needs" "run Mixture-of-Experts models from programs of one's own" <<'END'
The library of moe-toolkit with its public header, its pkg-config and
CMake files, and an example that chats.
END
