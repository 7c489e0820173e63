/* A stream whose fd was closed may have the fd of a file that the library has opened since. To close or reopen the stream
 * neither closes nor replaces that file: the fd is a closed one for the program. */
#include "../c/check.h"
#include <sys/resource.h>
#include <sys/wait.h>

/* The library's fds begin at three quarters of the limit. */
enum { LIMIT = 64, FIRST = LIMIT / 4 * 3, STREAMS = 4 };

enum how { FCLOSE, FREOPEN, FREOPEN64, FREOPEN_MODE, PCLOSE, HOWS };

/* Opens streams over the fds that the library takes for itself once they are free. */
static void open_streams(FILE **streams, enum how how)
{
	int fillers[LIMIT], filled = 0;
	if (how != PCLOSE) {
		for (int at = 0; at < STREAMS; at++) {
			int fd = FIRST + at;
			CHECK(dup2(STDERR_FILENO, fd) == fd && (streams[at] = fdopen(fd, "w")) != NULL);
		}
		return;
	}
	/* These get the lowest fds that are free. */
	do
		CHECK((fillers[filled] = dup(STDERR_FILENO)) >= 0);
	while (fillers[filled++] < FIRST - 1);
	for (int at = 0; at < STREAMS; at++)
		CHECK((streams[at] = popen("exit 3", "r")) != NULL && fileno(streams[at]) == FIRST + at);
	while (filled > 0)
		CHECK(close(fillers[--filled]) == 0);
}

static int is_open_in_the_kernel(int fd)
{
	char path[32];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void close_stream(FILE *stream, enum how how)
{
	switch (how) {
	case FCLOSE:
		CHECK((errno = 0, fclose(stream)) == EOF && errno == EBADF);
		break;
	case FREOPEN:
		CHECK(freopen("/dev/zero", "r", stream) == stream);
		CHECK(fgetc(stream) == 0 && fclose(stream) == 0);
		break;
	case FREOPEN64:
		CHECK(freopen64("/dev/zero", "r", stream) == stream);
		CHECK(fgetc(stream) == 0 && fclose(stream) == 0);
		break;
	case FREOPEN_MODE:
		/* The file that is to be opened again is gone. */
		CHECK(freopen(NULL, "a", stream) == NULL);
		break;
	default:
		CHECK((errno = 0, pclose(stream)) == -1 && errno == EBADF);
	}
}

static void leaves_the_librarys_files(enum how how)
{
	const char *preloaded = getenv("LD_PRELOAD"), *kinds = getenv("UPOLL_USER");
	struct rlimit limit = {LIMIT, LIMIT};
	FILE *streams[STREAMS];
	int fds[STREAMS], set, counter, pair[2], shared = 0;
	struct epoll_event event;
	uint64_t value = 1;
	CHECK(close_range(3, ~0u, 0) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0);
	open_streams(streams, how);
	for (int at = 0; at < STREAMS; at++)
		CHECK(close(fds[at] = fileno(streams[at])) == 0);
	CHECK((set = epoll_create1(0)) >= 0 && (counter = eventfd(0, 0)) >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0 && add(set, pair[0], EPOLLIN, 2) == 0);
	for (int at = 0; at < STREAMS; at++)
		shared += is_open_in_the_kernel(fds[at]);
	CHECK((shared > 0) == (preloaded != NULL && strstr(preloaded, "libupoll_preload") != NULL &&
			       (kinds == NULL || strcmp(kinds, "none") != 0)));
	for (int at = 0; at < STREAMS; at++) {
		close_stream(streams[at], how);
		/* The set has its own file, and reports both members. */
		CHECK(write(pair[1], "x", 1) == 1);
		CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 2);
		CHECK(read(pair[0], &value, 1) == 1);
		CHECK((value = 1, write(counter, &value, 8)) == 8);
		CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == 1);
		CHECK(read(counter, &value, 8) == 8 && value == 1);
	}
	for (int at = 0; at < STREAMS; at++)
		shared -= is_open_in_the_kernel(fds[at]);
	CHECK(shared == 0);
}

int main(void)
{
	alarm(300);
	/* Each in a process of its own: the library's files stay where they are. */
	for (int how = 0; how < HOWS; how++) {
		int status;
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			leaves_the_librarys_files((enum how)how);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (status != 0)
			fprintf(stderr, "way %d: status %d\n", how, status);
		CHECK(status == 0);
	}
	return 0;
}
