# Runs jobs side by side, for scripts with many tests that wait more than they compute. To be sourced.
#
#   begin_jobs FOLDER FAILURES   FOLDER gets files for each job, FAILURES a line for each that fails
#   job COMMAND...               starts one as soon as there is a place for it
#   end_jobs                     waits for all of them
#
# A job is a command or a function, run in a subshell with "set -e". Its output appears when it is
# over, in the order of the jobs. CI_JOBS sets how many run at once.

begin_jobs() {
    jobs_folder=$1 jobs_failures=$2 jobs_started=0 jobs_shown=0
    declare -gA jobs_running=()
    mkdir -p "$jobs_folder"
}

job() {
    while [ ${#jobs_running[@]} -ge "${CI_JOBS:-3}" ]; do
        wait_for_a_job
    done
    # Without job control the shell would have background jobs ignore SIGINT, which tests inherit.
    set -m
    (
        set +m
        "$@"
    ) > "$jobs_folder/$jobs_started.log" 2>&1 < /dev/null &
    set +m
    jobs_running[$!]=$jobs_started
    echo "$*" > "$jobs_folder/$jobs_started.name"
    jobs_started=$((jobs_started + 1))
}

wait_for_a_job() {
    local pid='' status=0 number
    wait -n -p pid "${!jobs_running[@]}" || status=$?
    number=${jobs_running[$pid]}
    unset "jobs_running[$pid]"
    if [ $status != 0 ]; then
        echo "FAILED ($status): $(< "$jobs_folder/$number.name")" >> "$jobs_folder/$number.log"
        cat "$jobs_folder/$number.name" >> "$jobs_failures"
    fi
    touch "$jobs_folder/$number.over"
    while [ -e "$jobs_folder/$jobs_shown.over" ]; do
        cat "$jobs_folder/$jobs_shown.log"
        jobs_shown=$((jobs_shown + 1))
    done
}

end_jobs() {
    while [ ${#jobs_running[@]} != 0 ]; do
        wait_for_a_job
    done
}

# For a trap: each job leads a process group.
stop_jobs() {
    local pid
    for pid in "${!jobs_running[@]}"; do
        kill -- "-$pid" 2> /dev/null || true
    done
}
