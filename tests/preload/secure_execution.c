/* In secure-execution mode (AT_SECURE, as for a set-group-ID program) the library ignores
 * UPOLL_USER, UPOLL_STATS and UPOLL_TOP. The loader preloads nothing there, but a program that is linked to
 * the library still loads it. */
#include "../c/check.h"
#include <dlfcn.h>
#include <limits.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The size of the figures: the first process, and 256 sets of 10 words and 64 threads of 3. */
enum { FIGURES = 8 * (1 + 256 * (10 + 64 * 3)) };

enum { NOT_SECURE = 3, IGNORES = 4, OBEYS = 5, NOTHING_TO_TEST = 77 };

/* Returns whether pipes are user-level: the kernel, which this program calls directly, does not
 * have the bytes that are in them. */
static int makes_pipes(void *library)
{
	int (*make)(int *) = (int (*)(int *))dlsym(library, "pipe");
	ssize_t (*write_to)(int, const void *, size_t) =
		(ssize_t(*)(int, const void *, size_t))dlsym(library, "write");
	int ends[2], bytes = -1;
	CHECK(make != NULL && write_to != NULL && make(ends) == 0 && write_to(ends[1], "x", 1) == 1);
	CHECK(ioctl(ends[0], FIONREAD, &bytes) == 0);
	return bytes == 0;
}

static int with_library(const char *path, int is_secure)
{
	void *library;
	if ((getauxval(AT_SECURE) != 0) != is_secure)
		return NOT_SECURE;
	library = dlopen(path, RTLD_NOW);
	CHECK(library != NULL && getenv("UPOLL_USER") != NULL && getenv("UPOLL_STATS") != NULL);
	CHECK(getenv("UPOLL_TOP") != NULL);
	return makes_pipes(library) ? OBEYS : IGNORES;
}

/* Executes this program again. Returns its exit status. */
static int run(const char *path, int is_secure)
{
	pid_t child = fork();
	int status;
	CHECK(child >= 0);
	if (child == 0) {
		/* The effective group differs from the real one. */
		if (is_secure && setresgid((gid_t)-1, getgid() + 1, (gid_t)-1) != 0)
			_exit(NOT_SECURE);
		execl("/proc/self/exe", "secure_execution", path, is_secure ? "secure" : "", NULL);
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Finds the library among the files that this process has loaded. */
static int find_library(char path[PATH_MAX])
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[PATH_MAX + 200], *name;
	int is_found = 0;
	CHECK(maps != NULL);
	while (!is_found && fgets(line, sizeof line, maps) != NULL)
		if ((name = strchr(line, '/')) != NULL && strstr(name, "/libupoll_preload.so") != NULL) {
			name[strcspn(name, "\n")] = 0;
			snprintf(path, PATH_MAX, "%s", name);
			is_found = 1;
		}
	fclose(maps);
	return is_found;
}

int main(int count, char **arguments)
{
	char path[PATH_MAX], place[] = "/tmp/upoll-secure-XXXXXX", figures[] = "/tmp/upoll-secure-XXXXXX";
	struct stat found;
	uint64_t root = 0;
	int status, file;
	if (count == 3)
		return with_library(arguments[1], arguments[2][0] != 0);
	if (!find_library(path))
		return NOTHING_TO_TEST;
	CHECK(close(mkstemp(place)) == 0 && unsetenv("LD_PRELOAD") == 0);
	CHECK(setenv("UPOLL_USER", "all", 1) == 0 && setenv("UPOLL_STATS", place, 1) == 0);
	CHECK((file = mkstemp(figures)) >= 0 && setenv("UPOLL_TOP", figures, 1) == 0);
	/* A file of another size was named by mistake, and is left alone. */
	CHECK(ftruncate(file, FIGURES + 1) == 0 && run(path, 0) == OBEYS);
	CHECK(pread(file, &root, sizeof root, 0) == sizeof root && root == 0 && access(figures, F_OK) == 0);
	CHECK(ftruncate(file, FIGURES) == 0 && truncate(place, 0) == 0);
	status = run(path, 1);
	CHECK(stat(place, &found) == 0);
	if (status == NOT_SECURE) {
		CHECK(unlink(place) == 0 && unlink(figures) == 0);
		return NOTHING_TO_TEST;
	}
	CHECK(status == IGNORES && found.st_size == 0 && access(figures, F_OK) == 0);
	CHECK(pread(file, &root, sizeof root, 0) == sizeof root && root == 0);
	/* Otherwise the library obeys the variables. The first process that has the figures removes them at its end. */
	CHECK(run(path, 0) == OBEYS && stat(place, &found) == 0 && found.st_size > 0);
	CHECK(pread(file, &root, sizeof root, 0) == sizeof root && root != 0 && access(figures, F_OK) != 0);
	return unlink(place) == 0 ? 0 : 1;
}
