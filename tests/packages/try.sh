# The Debian packages on a Debian that has nothing else: lintian, then both installed in a chroot, where the
# programs quantize, plan and run the bundled model, the library's example is built, and all is taken away again.
# `make check-deb`; wants root, debootstrap and the network.
. tests/cli/lib.sh
. /etc/os-release
root=$tmp/root
trap 'umount "$root/proc" 2>/dev/null; rm -rf "$tmp"' EXIT
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    skip "the packages in a chroot" "not root, or debootstrap is not installed"
    finish
fi
if command -v lintian >/dev/null; then
    run lintian --allow-root --fail-on error,warning "$BUILD"/deb/*.deb
    expect_exit 0 "lintian has no word against the packages"
else
    skip "lintian" "it is not installed"
fi
inside() { run chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

run debootstrap --variant=minbase "$VERSION_CODENAME" "$root"
expect_exit 0 "a bare Debian"
mount -t proc none "$root/proc"
mkdir "$root/deb"
cp "$BUILD"/deb/*.deb "$root/deb"
cp -r "$checkpoint" "$root/tiny-moe"
inside sh -c 'apt-get install -y --no-install-recommends /deb/moe-toolkit_*.deb'
expect_exit 0 "the programs install"
inside moe-quantize -q -o /tiny.moe --experts 4 /tiny-moe
expect_exit 0 "moe-quantize"
inside moe-plan /tiny.moe --memory 40M --device-profile /usr/share/moe-toolkit/profiles/raspberry-pi-4b.yaml -o /plan.yaml
expect_exit 0 "moe-plan with an installed profile"
inside moe-run /tiny.moe --plan /plan.yaml -p 'Once upon a time' --temp 0 -n 20
expect_stdout_like '*there was*' "moe-run"
check "pages and completions are there" [ -e "$root/usr/share/man/man1/moe-run.1.gz" -a -e "$root/usr/share/bash-completion/completions/moe-run" ]
check "... and shapes" [ -e "$root/usr/share/moe-toolkit/profiles/shapes/mixtral-8x7b.json" ]
inside sh -c 'apt-get install -y --no-install-recommends /deb/libmoe-dev_*.deb gcc libc6-dev pkg-config'
expect_exit 0 "the library installs"
inside sh -c 'gcc /usr/share/doc/libmoe-dev/examples/chat.c $(pkg-config --cflags --libs --static moe) -o /chat &&
    echo "Once upon a time" | /chat /tiny.moe 60'
expect_stdout_like '*there was*' "... and its example, built there, answers"
inside apt-get purge -y moe-toolkit libmoe-dev
expect_exit 0 "both are taken away"
check "... wholly" [ -z "$(find "$root/usr" "$root/etc" -name '*moe*' | head -1)" ]
finish
