/* The server of a set changes while threads wait in it. First the set has only kernel fds, then an
 * eventfd, and then a child of fork shares it. */
#include "../c/check.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { THREADS = 4 };
static int set, inner;
/* The number of threads that have left their wait, shared with a child. */
static int *left;

static void *waits(void *timeout)
{
	struct epoll_event events[4];
	CHECK(epoll_wait(set, events, 4, *(int *)timeout) == 1);
	__atomic_add_fetch(left, 1, __ATOMIC_SEQ_CST);
	return (void *)(uintptr_t)events[0].data.u64;
}

static void start(pthread_t *threads, int *timeout)
{
	int at;
	__atomic_store_n(left, 0, __ATOMIC_SEQ_CST);
	for (at = 0; at < THREADS; at++)
		CHECK(pthread_create(&threads[at], NULL, waits, timeout) == 0);
	sleep_ms(50);
}

static void end(pthread_t *threads, uintptr_t data)
{
	int at;
	for (at = 0; at < THREADS; at++) {
		void *found;
		CHECK(pthread_join(threads[at], &found) == 0 && (uintptr_t)found == data);
	}
}

/* Threads wait in a set with only kernel members, or in an empty one. */
static void eventfd_comes(int with_pipe, int timeout)
{
	pthread_t threads[THREADS];
	struct epoll_event events[4];
	int fds[2], counter = eventfd(0, EFD_NONBLOCK);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(pipe(fds) == 0);
	if (with_pipe)
		CHECK(add(set, fds[0], EPOLLIN, 1) == 0);
	start(threads, &timeout);
	CHECK(add(set, counter, EPOLLIN, 2) == 0);
	sleep_ms(50);
	CHECK(eventfd_write(counter, 1) == 0);
	end(threads, 2);
	if (!with_pipe)
		CHECK(add(set, fds[0], EPOLLIN, 1) == 0);
	CHECK(epoll_wait(set, events, 4, 0) == 1);
	CHECK(write(fds[1], "x", 1) == 1);
	CHECK(epoll_wait(set, events, 4, 0) == 2);
	CHECK(epoll_wait(set, events, 1, 60000) == 1);
	close(set), close(fds[0]), close(fds[1]), close(counter);
}

/* A child waits in the same set as its parent. Each receives the events of the other. */
static void fork_comes(int timeout)
{
	pthread_t threads[THREADS];
	struct epoll_event events[4];
	int fds[2], status, counter = eventfd(0, EFD_NONBLOCK), copy;
	uint64_t value;
	pid_t child;
	set = epoll_create1(0);
	inner = epoll_create1(0);
	copy = dup(set);
	CHECK(pipe(fds) == 0);
	CHECK(add(inner, fds[0], EPOLLIN, 3) == 0 && add(set, inner, EPOLLIN, 4) == 0);
	CHECK(add(set, counter, EPOLLIN, 5) == 0);
	start(threads, &timeout);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(epoll_wait(set, events, 4, 0) == 0);
		CHECK(eventfd_write(counter, 6) == 0);
		CHECK(epoll_wait(copy, events, 4, 0) == 1 && events[0].data.u64 == 5);
		/* A thread that begins its wait after the read would find no event. */
		while (__atomic_load_n(left, __ATOMIC_SEQ_CST) < THREADS)
			sleep_ms(5);
		CHECK(eventfd_read(counter, &value) == 0 && value == 6);
		CHECK(write(fds[1], "x", 1) == 1);
		CHECK(epoll_wait(set, events, 4, 60000) == 1 && events[0].data.u64 == 4);
		CHECK(epoll_wait(inner, events, 4, 0) == 1 && events[0].data.u64 == 3);
		CHECK(epoll_ctl(set, EPOLL_CTL_DEL, inner, NULL) == 0);
		_exit(0);
	}
	end(threads, 5);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	/* The child has deleted the inner set, for both processes. */
	CHECK(epoll_wait(set, events, 4, 0) == 0);
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(epoll_wait(copy, events, 4, 0) == 1 && events[0].data.u64 == 5);
	/* A new eventfd in a shared set. */
	status = eventfd(1, 0);
	CHECK(add(set, status, EPOLLIN, 7) == 0);
	FAILS(add(set, status, EPOLLIN, 7), EEXIST);
	CHECK(epoll_wait(set, events, 4, 0) == 2);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, status, NULL) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, status, NULL), ENOENT);
	close(status), close(set), close(copy), close(inner), close(counter);
	close(fds[0]), close(fds[1]);
}

/* A poll of a set, and a nested set, which begin with kernel members only. */
static void set_is_watched(void)
{
	struct epoll_event events[4];
	struct pollfd entry;
	int fds[2], counter = eventfd(0, 0), outer = epoll_create1(0);
	set = epoll_create1(0);
	CHECK(pipe(fds) == 0 && add(set, fds[0], EPOLLIN, 1) == 0);
	entry.fd = set, entry.events = POLLIN;
	CHECK(poll(&entry, 1, 0) == 0);
	CHECK(add(outer, set, EPOLLIN, 2) == 0 && epoll_wait(outer, events, 4, 0) == 0);
	FAILS(add(set, outer, EPOLLIN, 2), ELOOP);
	FAILS(add(set, set, EPOLLIN, 2), EINVAL);
	CHECK(write(fds[1], "x", 1) == 1);
	CHECK(poll(&entry, 1, 1000) == 1 && epoll_wait(outer, events, 4, 60000) == 1);
	CHECK(read(fds[0], events, 1) == 1);
	CHECK(poll(&entry, 1, 0) == 0 && epoll_wait(outer, events, 4, 0) == 0);
	CHECK(add(set, counter, EPOLLIN, 3) == 0 && eventfd_write(counter, 1) == 0);
	CHECK(poll(&entry, 1, 1000) == 1 && epoll_wait(outer, events, 4, 60000) == 1);
	close(set), close(outer), close(counter), close(fds[0]), close(fds[1]);
}

int main(void)
{
	int round;
	left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(left != MAP_FAILED);
	set_is_watched();
	for (round = 0; round < 5; round++) {
		eventfd_comes(0, -1), eventfd_comes(0, 30000);
		eventfd_comes(1, -1), eventfd_comes(1, 30000);
		fork_comes(-1), fork_comes(30000);
	}
	return 0;
}
