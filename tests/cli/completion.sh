# Completions of the shells: every program's load, and complete options, words and files. Zsh and fish
# are asked where they are installed.
# shellcheck shell=bash disable=SC2154 # the variables are lib.sh's
. tests/cli/lib.sh
mkdir "$tmp/files"
touch "$tmp/files/one model.moe" "$tmp/files/other.moe"
mkdir "$tmp/files/folder"
for file in "$bin"/moe-*; do
    program=${file##*/}
    for shell in bash zsh fish; do
        "$file" --completion $shell >"$tmp/$program.$shell"
    done
    grep -o -- ' -l [a-z0-9-]*' "$tmp/$program.fish" | sort | uniq -d >"$tmp/twice"
    check "$program: options stand once" [ -s "$tmp/$program.fish" -a ! -s "$tmp/twice" ]
    check "$program: bash reads its file" bash -n "$tmp/$program.bash"
done
PATH=$PWD/$bin:$PATH
run "$bin/moe-run" --completion csh
expect_exit 2 "no completion of another shell"
expect_stderr_like "*--completion: 'csh' is not one of bash, zsh, fish*" "... which says what there is"

# asks bash as it would be asked at the end of the line: its answers, a line each
bash_says() { # WORD...
    (cd "$tmp/files" && bash --norc -c '
        . "$1"; shift
        compopt() { :; } # is for the line editor
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        "_${1//-/_}"
        printf "%s\n" "${COMPREPLY[@]}"' sh "$tmp/$1.bash" "$@") | sort | tr '\n' ';'
}
check "bash: the beginning of an option" [ "$(bash_says moe-run --toke)" = "--token-log;--tokens;" ]
check "bash: a strategy" [ "$(bash_says moe-run x.moe --strategy fa)" = "fate;" ]
check "bash: ... after a sign" [ "$(bash_says moe-run x.moe --strategy = hob)" = "hobbit;" ]
check "bash: ... nothing typed after the sign" [ "$(bash_says moe-run --pooling =)" = "first;last;mean;" ]
check "bash: a schedule" [ "$(bash_says moe-serve --schedule f)" = "fcfs;" ]
check "bash: packs, also with spaces" [ "$(bash_says moe-run o)" = "one model.moe;other.moe;" ]
check "bash: the file of an option" [ "$(bash_says moe-run --plan ot)" = "other.moe;" ]
check "bash: directories alone" [ "$(bash_says moe-profile --dir '')" = "folder;" ]
check "bash: nothing for a number" [ "$(bash_says moe-run -n '')" = ";" ]

if command -v fish >/dev/null; then
    fish_says() {
        (cd "$tmp/files" && HOME=$tmp fish --no-config -c "source $tmp/moe-run.fish; complete -C '$1'") | cut -f 1 | sort | tr '\n' ';'
    }
    check "fish: the beginning of an option" [ "$(fish_says 'moe-run --toke')" = "--token-log;--tokens;" ]
    check "fish: a strategy" [ "$(fish_says 'moe-run --strategy fa')" = "fate;" ]
    check "fish: the file of an option" [ "$(fish_says 'moe-run --plan ot')" = "other.moe;" ]
else
    skip "fish" "it is not installed"
fi
if command -v zsh >/dev/null; then
    # A shell on a terminal of its own, to which keys are sent: its completions are asked of no program.
    cat >"$tmp/ask.zsh" <<'END'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; cd $1; fpath=($2 \$fpath); autoload -U compinit; compinit -u -D; LISTMAX=1000"
zpty -w shell $'zstyle ":completion:*" list-prompt ""; echo rea''dy'
zpty -r shell said '*ready'$'\r'
zpty -n -w shell "$3"$'\t'
for i in {1..600}; do
    zpty -r -t shell piece && said+=$piece
    [[ $said == *$4* ]] && break
    sleep 0.1
done
print -r -- "$said"
zpty -d shell
END
    mkdir "$tmp/zsh"
    cp "$tmp/moe-run.zsh" "$tmp/zsh/_moe-run"
    zsh_says() { zsh -f "$tmp/ask.zsh" "$tmp/files" "$tmp/zsh" "$1" "$2" 2>&1 | grep -qF -- "$2"; }
    check "zsh reads its file" zsh -n "$tmp/moe-run.zsh"
    check "zsh: an option" zsh_says 'moe-run --early-s' '--early-stopping'
    check "zsh: a strategy" zsh_says 'moe-run --strategy fa' 'fate'
    check "zsh: the file of an option" zsh_says 'moe-run --plan ot' 'other.moe'
else
    skip "zsh" "it is not installed"
fi
finish
