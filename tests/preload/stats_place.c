/* The statistics go to the file that was opened at the start, and not to the file that has fd 2, or
 * the fd of the statistics, when the process ends. Without the library there are none. */
#include "../c/check.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Opens a file of the program at every fd. */
static void fill(int file)
{
	struct rlimit limit;
	int fd, counter = eventfd(0, 0);
	dup2(file, 2);
	for (fd = 3; fd < 1024; fd++)
		if (fd != file && fd != counter)
			dup2(file, fd);
	/* Also around three quarters of the limit, where the reserved range may begin. */
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		int top = (int)(limit.rlim_cur < 65536 ? limit.rlim_cur : 65536) / 4 * 3;
		for (fd = top - 64; fd < top + 64; fd++)
			if (fd > 2 && fd != file)
				dup2(file, fd);
	}
}

static off_t size_of(int file)
{
	struct stat found;
	CHECK(fstat(file, &found) == 0);
	return found.st_size;
}

/* Executes this program with statistics to a file, by its name or as standard error. */
static int is_in_its_place(int is_named)
{
	char program_place[] = "/tmp/upoll-stats-XXXXXX", report_place[] = "/tmp/upoll-stats-XXXXXX";
	const char *preloaded = getenv("LD_PRELOAD");
	int program = mkstemp(program_place), report = mkstemp(report_place);
	int is_there = preloaded != NULL && strstr(preloaded, "libupoll_preload") != NULL;
	int status, is_right;
	pid_t child;
	CHECK(program >= 0 && report >= 0 && unlink(program_place) == 0);
	child = fork();
	if (child == 0) {
		char number[20];
		snprintf(number, sizeof number, "%d", program);
		CHECK(setenv("UPOLL_STATS", is_named ? report_place : "", 1) == 0);
		CHECK(is_named || dup2(report, 2) == 2);
		execl("/proc/self/exe", "stats_place", number, NULL);
		_exit(1);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	is_right = size_of(program) == 0 && (size_of(report) > 0) == is_there;
	if (!is_right)
		fprintf(stderr, "%ld bytes in the program's file, %ld in the report (named: %d)\n",
			(long)size_of(program), (long)size_of(report), is_named);
	CHECK(unlink(report_place) == 0 && close(program) == 0 && close(report) == 0);
	return is_right;
}

/* A symbolic link is not followed. */
static int leaves_links_alone(void)
{
	char place[] = "/tmp/upoll-stats-XXXXXX", link[sizeof place + 5];
	int file = mkstemp(place), status, is_right;
	pid_t child;
	snprintf(link, sizeof link, "%s.link", place);
	CHECK(file >= 0 && symlink(place, link) == 0);
	child = fork();
	if (child == 0) {
		CHECK(setenv("UPOLL_STATS", link, 1) == 0);
		execl("/proc/self/exe", "stats_place", "2", NULL);
		_exit(1);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	is_right = size_of(file) == 0;
	if (!is_right)
		fprintf(stderr, "%ld bytes in the file of a link\n", (long)size_of(file));
	CHECK(unlink(place) == 0 && unlink(link) == 0 && close(file) == 0);
	return is_right;
}

int main(int count, char **arguments)
{
	if (count == 2) {
		fill(atoi(arguments[1]));
		return 0;
	}
	return is_in_its_place(0) & is_in_its_place(1) & leaves_links_alone() ? 0 : 1;
}
