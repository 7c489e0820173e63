/* A process that cannot open the file of the statistics says so in one line at its start, where this neither
 * ends nor delays it. Without the library there is no line. */
#include "../c/check.h"
#include <sys/wait.h>

enum { REFUSED = 4096 };

/* Executes this program, whose statistics have no place, with `error` as standard error. Returns its status. */
static int run_over(int error)
{
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(setenv("UPOLL_STATS", "/nowhere/stats", 1) == 0 && dup2(error, 2) == 2);
		signal(SIGPIPE, SIG_DFL);
		execl("/proc/self/exe", "stats_refused", "program", (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child);
	return status;
}

int main(int count, char **arguments)
{
	char said[REFUSED] = "", wanted[REFUSED] = "", byte[REFUSED];
	const char *preloaded = getenv("LD_PRELOAD"), *name;
	int ends[2], counter;
	eventfd_t value = 0;

	(void)arguments;
	alarm(300);
	/* The program writes nothing itself: what is in the pipe is the library's. */
	if (count > 1)
		return eventfd(0, 0) < 0;

	CHECK(pipe(ends) == 0 && run_over(ends[1]) == 0);
	CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	if (read(ends[0], said, sizeof said - 1) < 0)
		CHECK(errno == EAGAIN);
	if (preloaded != NULL && strstr(preloaded, "libupoll_preload") != NULL) {
		CHECK(sscanf(said, "upoll: %*[^(](%d)", &counter) == 1);
		name = strchr(said, '(');
		CHECK(name != NULL && strncmp(said, "upoll: ", 7) == 0);
		snprintf(wanted, sizeof wanted, "(%d) cannot write statistics to /nowhere/stats: %s\n", counter,
			 strerror(ENOENT));
		CHECK(strcmp(name, wanted) == 0);
	} else {
		CHECK(said[0] == 0);
	}

	/* A full pipe, and one without a reader. */
	memset(byte, 'x', sizeof byte);
	CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
	while (write(ends[1], byte, sizeof byte) > 0)
		;
	CHECK(fcntl(ends[1], F_SETFL, 0) == 0 && run_over(ends[1]) == 0);
	CHECK(close(ends[0]) == 0 && run_over(ends[1]) == 0);

	/* For an eventfd a text is a number. */
	CHECK((counter = eventfd(1, 0)) >= 0 && run_over(counter) == 0);
	CHECK(eventfd_read(counter, &value) == 0 && value == 1);
	return 0;
}
