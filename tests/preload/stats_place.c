// The report of statistics goes to the file that was opened at the start: not into what number 2, or the
// report's own number, stands for when the process ends.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    char path[] = "/tmp/upoll-stats-XXXXXX";
    int file = mkstemp(path);
    if (file < 0)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        int fd = eventfd(0, 0);
        // A file of the program's at every number there is.
        dup2(file, 2);
        for (int number = 3; number < 1024; number++)
            if (number != file && number != fd)
                dup2(file, number);
        // One above all that are reserved.
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
            int top = (int)(limit.rlim_cur < 65536 ? limit.rlim_cur : 65536) / 4 * 3;
            for (int number = top - 64; number < top + 64; number++)
                if (number > 2 && number != file)
                    dup2(file, number);
        }
        exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return 1;
    struct stat found;
    int is_empty = fstat(file, &found) == 0 && found.st_size == 0;
    unlink(path);
    if (!is_empty)
        fprintf(stderr, "stats_place: the report is in a file of the program's\n");
    return is_empty ? 0 : 1;
}
