/* fork(2) while other threads make, use, duplicate and close the objects that the child inherits.
 */
#include "check.h"
#include <stdatomic.h>
#include <sys/wait.h>

static atomic_bool is_over, is_stopped;

/* Bytes flow through one pipe or pair all the time, more than it holds at once. */
struct stream {
	int fds[2];
	size_t count;
};

enum { MOST = 100000 };

static void *sends(void *argument)
{
	struct stream *stream = argument;
	char *own = malloc(MOST);
	size_t at = 0, count;
	while (!is_stopped) {
		size_t size = 1 + at % MOST;
		for (count = 0; count < size; count++)
			own[count] = (char)((at + count) % 251);
		CHECK(write(stream->fds[1], own, size) == (ssize_t)size);
		at += size;
	}
	stream->count = at;
	close(stream->fds[1]);
	free(own);
	return NULL;
}

static void *takes(void *argument)
{
	struct stream *stream = argument;
	struct pollfd entry = {stream->fds[0], POLLIN, 0};
	char buffer[5000];
	size_t at = 0;
	for (;;) {
		ssize_t count, each;
		/* Waits in the two calls alternately. */
		if (at % 2)
			CHECK(poll(&entry, 1, -1) == 1);
		count = read(stream->fds[0], buffer, sizeof buffer);
		CHECK(count >= 0);
		if (count == 0)
			break;
		for (each = 0; each < count; each++)
			CHECK(buffer[each] == (char)((at + (size_t)each) % 251));
		at += (size_t)count;
	}
	CHECK(at == stream->count);
	return NULL;
}

static void *makes(void *unused)
{
	struct epoll_event event;
	char buffer[8];
	uint64_t value;
	int fds[2], fd, copy, epfd, at;
	(void)unused;
	for (at = 0; !is_over; at++) {
		CHECK((at % 2 ? pipe(fds) : socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) == 0);
		fd = eventfd(0, EFD_NONBLOCK);
		epfd = epoll_create1(0);
		CHECK(fd >= 0 && epfd >= 0);
		CHECK(add(epfd, fd, EPOLLIN, 1) == 0 && add(epfd, fds[0], EPOLLIN, 2) == 0);
		copy = dup(fds[1]);
		CHECK(copy >= 0);
		CHECK(write(fds[1], "abc", 3) == 3 && write(copy, "de", 2) == 2);
		CHECK(eventfd_write(fd, 1) == 0 && eventfd_write(fd, 2) == 0);
		CHECK(epoll_wait(epfd, &event, 1, -1) == 1);
		CHECK(read(fds[0], buffer, 8) == 5 && memcmp(buffer, "abcde", 5) == 0);
		CHECK(eventfd_read(fd, &value) == 0 && value == 3);
		CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
		CHECK(dup2(fd, fds[1]) == fds[1] && eventfd_write(fds[1], 4) == 0);
		CHECK(eventfd_read(fd, &value) == 0 && value == 4);
		CHECK(close(fds[0]) == 0 && close(fds[1]) == 0 && close(fd) == 0);
		CHECK(close(copy) == 0 && close(epfd) == 0);
	}
	return NULL;
}

static void check_child(int fds[2])
{
	char buffer[8];
	int fd;
	/* The child has all of the parent's fds. */
	for (fd = 0; fd < 64; fd++) {
		int flags = fcntl(fd, F_GETFL);
		CHECK(flags == -1 || !(flags & O_PATH));
	}
	CHECK(read(fds[0], buffer, 8) == 6);
	CHECK(write(fds[1], "child", 5) == 5);
	_exit(0);
}

int main(void)
{
	static struct stream streams[4];
	pthread_t makers[2], threads[8];
	char buffer[8];
	int round, fds[2], status, at;
	pid_t child;
	CHECK(pthread_create(&makers[0], NULL, makes, NULL) == 0);
	CHECK(pthread_create(&makers[1], NULL, makes, NULL) == 0);
	for (round = 0; round < 40; round++) {
		is_stopped = 0;
		for (at = 0; at < 4; at++) {
			CHECK((at % 2 ? pipe(streams[at].fds)
				      : socketpair(AF_UNIX, SOCK_STREAM, 0, streams[at].fds)) == 0);
			CHECK(pthread_create(&threads[at], NULL, sends, &streams[at]) == 0);
			CHECK(pthread_create(&threads[4 + at], NULL, takes, &streams[at]) == 0);
		}
		CHECK(pipe(fds) == 0 && write(fds[1], "parent", 6) == 6);
		sleep_ms(round % 4);
		child = fork();
		CHECK(child >= 0);
		if (child == 0)
			check_child(fds);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		CHECK(read(fds[0], buffer, 8) == 5);
		close(fds[0]), close(fds[1]);
		is_stopped = 1;
		for (at = 0; at < 8; at++)
			CHECK(pthread_join(threads[at], NULL) == 0);
		for (at = 0; at < 4; at++)
			close(streams[at].fds[0]);
	}
	is_over = 1;
	CHECK(pthread_join(makers[0], NULL) == 0 && pthread_join(makers[1], NULL) == 0);
	return 0;
}
