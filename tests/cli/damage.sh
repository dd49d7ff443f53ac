# Damaged packs: one line and exit 3, never a crash and never a wrong answer.
. tests/cli/lib.sh
pack
bytes=$(wc -c <"$tiny")

# `text` and `list` exit with 3 and one line, or the damage is in what they do not read: then the
# output is that of the sound pack.
"$bin/moe-run" -t 1 "$tiny" -p Once -n 5 --temp 0 >"$tmp/sound" 2>/dev/null
survives() { # NAME FILE
    run "$bin/moe-run" -t 1 "$2" -p Once -n 5 --temp 0
    if [ "$code" = 0 ] && cmp -s "$out" "$tmp/sound"; then
        result 0 "$1: moe-run, not touched by it"
    else
        error_line 3 "moe-run: $2: *" "$1: moe-run"
    fi
    run "$bin/moe-quantize" --verify "$2"
    error_line 3 "moe-quantize: $2: *" "$1: moe-quantize --verify"
}

# Before, in and after the header; in the weights; in the directory at the end.
for part in 0 1 3 4 63 64 100 4095 4096 4097 $((bytes / 2)) $((bytes - 4096)) $((bytes - 1)); do
    head -c "$part" "$tiny" >"$tmp/cut.moe"
    survives "cut to $part bytes" "$tmp/cut.moe"
done
# Flipped bytes: header (magic, version, sizes, the section table's lengths and checksums), dense
# weights, experts, directory (at the end).
for at in 0 4 8 16 24 32 40 64 72 80 88 4088 4095 5000 $((bytes / 3)) $((bytes / 2)) $((bytes - 200)); do
    {
        head -c "$at" "$tiny"
        tail -c +$((at + 1)) "$tiny" | head -c 1 | LC_ALL=C tr '\000-\377' '\001-\377\000'
        tail -c +$((at + 2)) "$tiny"
    } >"$tmp/flip.moe"
    # Bytes of padding are not covered by a checksum: a change there is no damage.
    if "$bin/moe-quantize" --verify "$tmp/flip.moe" >/dev/null 2>&1; then
        result 0 "byte $at is padding"
        continue
    fi
    survives "byte $at changed" "$tmp/flip.moe"
done
head -c 4096 /dev/zero >"$tmp/zero.moe"
survives "zeros" "$tmp/zero.moe"
mkdir "$tmp/dir.moe"
run "$bin/moe-run" "$tmp/dir.moe" -p x
check "a directory for a pack is one line" sh -c "[ $code != 0 ] && [ \$(wc -l <'$err') = 1 ]"
# The pack's end twice, as after a copy that went wrong.
{ cat "$tiny"; tail -c 4096 "$tiny"; } >"$tmp/long.moe"
survives "4096 bytes too many" "$tmp/long.moe"
finish
