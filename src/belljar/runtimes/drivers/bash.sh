# Read by an interactive bash as its first commands, and then one cell after the other
# (guest/translator.py). Interactive, because such a shell survives what would end a script: an
# interrupt brings it back to its next command, `__belljar_done`, and the state stays. Descriptors:
#   0 commands   100 standard input of the code   101 reports   102, 103 the real outputs
# Its own outputs are /dev/null, where prompts and remarks about jobs go.
export -n PS1 PS2
set +o history +H
history -c
set -E
shopt -u checkwinsize
unset MAILCHECK
__belljar_status=0

__belljar_begin() {
    __belljar_begun=1
    exec 1>&102 2>&103
    # What `$?` is at first: as if the cells were one script, unless that would end this one.
    [[ $- == *e* ]] || return "$__belljar_status"
}

__belljar_done() {
    __belljar_status=${__belljar_ended:-$?}
    if [[ -z ${__belljar_begun-} ]]; then  # it could not be parsed: say why, without our frame
        "$BASH" -n -c "${__belljar_code:19:-2}" bash 2>&103
        __belljar_status=2
    fi
    unset __belljar_begun __belljar_ended __belljar_code
    printf '{"done":{"number":%d,"exit_code":%d}}\n' "$1" "$__belljar_status" >&101
}

# `exit`, and what `set -e` does, end the cell: an interrupt is what unwinds a shell to its top.
exit() {
    if [[ $BASHPID != "$$" ]]; then
        builtin exit "$@"
    fi
    __belljar_unwind "${1:-$?}"
}

__belljar_unwind() {
    __belljar_ended=$(($1 & 255))
    trap - INT
    kill -INT "$$"
}

trap '__belljar_failed=$?; [[ $- == *e* && $BASHPID == "$$" ]] && __belljar_unwind $__belljar_failed' ERR
