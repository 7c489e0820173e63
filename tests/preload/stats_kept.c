/* A program closes and replaces all fds that it did not open. It still appears in the statistics,
 * and so does its child. The statistics are not written to its own files. Without the library there
 * are none. */
#include "../c/check.h"
#include <sys/stat.h>
#include <sys/wait.h>

enum { FDS = 1024 };

static void use_counter(void)
{
	uint64_t value = 1;
	int counter = eventfd(0, 0);
	CHECK(counter >= 0 && write(counter, &value, 8) == 8 && read(counter, &value, 8) == 8);
	close(counter);
}

static int run_program(void)
{
	char path[] = "/tmp/stats_kept.XXXXXX";
	struct stat found;
	int file, status;
	pid_t child;

	use_counter();
	closefrom(3);
	CHECK((file = mkstemp(path)) >= 0 && unlink(path) == 0);
	for (int fd = file + 1; fd < FDS; fd++)
		CHECK(dup2(file, fd) == fd);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		for (int fd = file + 1; fd < FDS; fd++)
			close(fd);
		use_counter();
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(fstat(file, &found) == 0 && found.st_size == 0);
	return 0;
}

int main(int count, char **arguments)
{
	char path[] = "/tmp/stats_kept.XXXXXX", line[512];
	const char *preloaded = getenv("LD_PRELOAD");
	int file, status, made, reports = 0;
	pid_t child;
	FILE *report;

	alarm(300);
	if (count > 1)
		return run_program();
	CHECK((file = mkstemp(path)) >= 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		setenv("UPOLL_STATS", path, 1);
		execl("/proc/self/exe", arguments[0], "program", (char *)NULL);
		_exit(127);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK((report = fdopen(file, "r")) != NULL);
	while (fgets(line, sizeof line, report)) {
		reports += strncmp(line, "upoll: ", 7) == 0;
		/* The child counts its own calls. */
		if (sscanf(line, " eventfd %d", &made) == 1)
			CHECK(made == 1);
	}
	unlink(path);
	CHECK(reports == (preloaded && strstr(preloaded, "libupoll_preload") ? 2 : 0));
	return 0;
}
