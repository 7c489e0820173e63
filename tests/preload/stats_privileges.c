/* A worker gives up the rights that the file of the statistics takes. It appears in the statistics all the
 * same. Without the library there are none. */
#include "../c/check.h"
#include <sys/wait.h>

enum { NOBODY = 65534 };

static void use_counter(void)
{
	uint64_t value = 1;
	int counter = eventfd(0, 0);
	CHECK(counter >= 0 && write(counter, &value, 8) == 8 && read(counter, &value, 8) == 8);
	close(counter);
}

static int run_program(const char *place)
{
	int status;
	pid_t child;

	use_counter();
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
		CHECK(open(place, O_WRONLY) == -1 && errno == EACCES);
		use_counter();
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}

int main(int count, char **arguments)
{
	char place[] = "/tmp/stats_privileges.XXXXXX", line[512];
	const char *preloaded = getenv("LD_PRELOAD");
	int file, status, reports = 0;
	pid_t child;
	FILE *report;

	alarm(300);
	if (count > 1)
		return run_program(arguments[1]);
	if (geteuid() != 0)
		return 77;
	CHECK((file = mkstemp(place)) >= 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		setenv("UPOLL_STATS", place, 1);
		execl("/proc/self/exe", arguments[0], place, (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK((report = fdopen(file, "r")) != NULL);
	while (fgets(line, sizeof line, report))
		reports += strncmp(line, "upoll: ", 7) == 0;
	unlink(place);
	CHECK(reports == (preloaded && strstr(preloaded, "libupoll_preload") ? 2 : 0));
	return 0;
}
