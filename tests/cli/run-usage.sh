# Command lines of moe-run that need no model: help, version, misuse, files that are no packs.
. tests/cli/lib.sh

run "$bin/moe-run" --help
expect_exit 0 "--help exits with 0"
expect_stdout_like 'Usage: moe-run *--temp X*Examples:*' "--help shows usage, options, examples"
expect_stderr_lines 0 "--help is silent on stderr"
check "--help fits 80 columns" sh -c "! grep -q '.\{81\}' '$out'"
check "--help fits a screen" [ "$(wc -l <"$out")" -le 48 ]
cp "$out" "$tmp/help"
run "$bin/moe-run" -h
check "-h is --help" cmp -s "$out" "$tmp/help"

run "$bin/moe-run" --version
expect_exit 0 "--version exits with 0"
expect_stdout_like 'moe-run (moe-toolkit) [0-9]*cpu: *CUDA: *' "--version names the build"
run "$bin/moe-run" --cpu scalar --version
expect_stdout_like '*cpu: scalar,*' "--cpu forces an instruction set"

run "$bin/moe-run" --top-k x model.moe
error_line 2 "moe-run: option --top-k: 'x' is neither a number of tokens, at most 1000000, nor -1 for all (see moe-run --help)" \
    "a number that is none"
run "$bin/moe-run" --temp -1 model.moe
error_line 2 "moe-run: option --temp: '-1' is not a number from 0 to 100 *" "a number out of range"
run "$bin/moe-run" --temp nan model.moe
error_line 2 "moe-run: option --temp: 'nan' is not a number *" "a number that is not finite"
for program in run plan quantize profile calibrate serve; do
    run "$bin/moe-$program" ''
    error_line 2 "moe-$program: '' names no file (see moe-$program --help)" "moe-$program: an empty name"
    run "$bin/moe-$program" -q -v model.moe
    error_line 2 "moe-$program: options --quiet and --verbose exclude each other *" "moe-$program: both quiet and verbose"
done
for program in plan quantize calibrate; do
    run env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$bin/moe-$program" model.moe
    error_line 2 "moe-$program: each of 2 ranks would do the same work: *without mpirun*" "moe-$program: ranks that do not work together"
    run env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$bin/moe-$program" model.moe
    expect_exit 2 "moe-$program: another rank than 0 ends, too"
    expect_stderr_lines 0 "moe-$program: ... and leaves the words to rank 0"
done
run env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$bin/moe-calibrate" --shard 2/2 model.moe --text none -o "$tmp/map"
expect_stderr_like 'moe-calibrate: *model.moe: *' "with --shard each rank has work of its own"
for option in 'run --file' 'run --stats-json' 'plan --explain' 'plan -o' 'profile --text' 'profile --html' 'profile --dir'; do
    run "$bin/moe-${option% *}" "${option#* }" '' model.moe
    error_line 2 "moe-${option% *}: option --*: '' names no file *" "moe-$option: an empty name"
done
run "$bin/moe-run" --nope model.moe
error_line 2 "moe-run: unknown option '--nope' (see moe-run --help)" "an unknown option"
run "$bin/moe-run" --temperature 1 model.moe
error_line 2 "moe-run: unknown option '--temperature'; did you mean --temp? (see moe-run --help)" "what others call it"
run "$bin/moe-run" --top_k=3 model.moe
error_line 2 "moe-run: unknown option '--top_k'; did you mean --top-k? *" "other marks"
run "$bin/moe-serve" --strict-nmaes model.moe
error_line 2 "moe-serve: unknown option '--strict-nmaes'; did you mean --strict-names? *" "a slip"
for page in man/moe-*.1; do
    program=$(basename "$page" .1)
    for option in $(sed -n 's/.*Fl Fl \([a-z-]*\) Ar size.*/\1/p' "$page" | sort -u); do
        case $program.$option in
        moe-pipeline.*) continue ;; # asks moe-plan
        moe-plan.gpu-memory) run "$bin/$program" x.moe --device cuda --memory 1G --gpu-memory 0K ;;
        *) run "$bin/$program" x.moe "--$option" 0K ;;
        esac
        error_line 2 "$program: option --$option: '0K' is not a *size* like *" "$program --$option: no bytes are no size"
    done
done
run "$bin/moe-run" -Z model.moe
error_line 2 "moe-run: unknown option -Z *" "an unknown letter"
run "$bin/moe-run" --te 3 model.moe
error_line 2 "moe-run: ambiguous option '--te' *" "an ambiguous option"
run "$bin/moe-run" model.moe -p
error_line 2 "moe-run: option -p needs an argument *" "a missing argument"
run "$bin/moe-run" --stats=yes model.moe
error_line 2 "moe-run: option --stats takes no argument *" "an argument too many"
run "$bin/moe-run"
error_line 2 "moe-run: no model given*" "no model"
run "$bin/moe-run" a.moe b.moe
error_line 2 "moe-run: unexpected argument 'b.moe' *" "two packs"
run "$bin/moe-run" a.moe -p x -f y
error_line 2 "moe-run: options --prompt and --file exclude each other *" "two texts"
run "$bin/moe-run" a.moe -p x --bench-runs 3
error_line 2 "moe-run: option --bench-runs goes with --bench *" "runs of no bench"
run "$bin/moe-run" a.moe --bench --bench-runs 0
error_line 2 "moe-run: *--bench-runs*" "no runs"
run "$bin/moe-run" a.moe --bench --ids x
error_line 2 "moe-run: options --ids and --bench exclude each other *" "two runs"
run "$bin/moe-run" a.moe --window 9
error_line 2 "moe-run: option --window goes with --perplexity *" "--window alone"
run "$bin/moe-run" a.moe --raw --system x
error_line 2 "moe-run: options --raw and --system exclude each other *" "--raw with a system text"
run "$bin/moe-run" a.moe --beams 1
error_line 2 "moe-run: option --beams: '1' is not a whole number from 2 to 256 *" "one beam"
run "$bin/moe-run" a.moe --beams 4 --top-p 0.9
error_line 2 "moe-run: options --beams and --top-p exclude each other *" "beams that draw"
run "$bin/moe-run" a.moe --early-stopping never
error_line 2 "moe-run: option --early-stopping goes with --beams *" "no beams"
run "$bin/moe-run" a.moe --beams 2 --bench
error_line 2 "moe-run: options --bench and --beams exclude each other *" "a bench of beams"
run "$bin/moe-run" a.moe --beams 2 --requests x
error_line 2 "moe-run: options --requests and --beams exclude each other *" "requests with beams"
run "$bin/moe-run" a.moe --cpu z80
error_line 2 "moe-run: option --cpu: 'z80' is not one of *" "an unknown instruction set"

run "$bin/moe-run" -- --help
error_line 1 "moe-run: --help: *" "-- ends the options"
run "$bin/moe-run" "$tmp/none.moe" -p x
error_line 1 "moe-run: $tmp/none.moe: *No such file or directory*" "a file that is not there"
run "$bin/moe-run" "$tmp" -p x
error_line 3 "moe-run: $tmp: not a checkpoint: no config.json*" "a directory without a model"
run "$bin/moe-run" Makefile -p x
error_line 3 "moe-run: Makefile: *" "a file of another kind"
: >"$tmp/empty.moe"
run "$bin/moe-run" "$tmp/empty.moe" -p x
error_line 3 "moe-run: $tmp/empty.moe: *" "an empty file"

if [ -w /dev/full ]; then
    code=0
    "$bin/moe-run" --help >/dev/full 2>"$err" || code=$?
    : >"$out"
    error_line 1 "moe-run: standard output: No space left on device" "a full disk"
fi
finish
