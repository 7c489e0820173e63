/* fork(2) and rotating sets: the workers are processes. Each has a set of its own that watches the
 * rotating set from before the fork. */
#include "check.h"
#include <sys/wait.h>

#ifndef KERNEL_ONLY
#include <netinet/in.h>

enum { WORKERS = 3, CONNECTIONS = 30 };

/* State that all processes share. */
struct seen {
	int served[WORKERS], in_vain[WORKERS], waits[WORKERS];
};

static void works(int me, int rotating, int listener, int over, struct seen *seen)
{
	struct epoll_event event;
	int set = epoll_create1(0), connection;
	CHECK(add(set, rotating, EPOLLIN, 1) == 0);
	CHECK(add(set, over, EPOLLIN, 2) == 0);
	for (;;) {
		__atomic_store_n(&seen->waits[me], 1, __ATOMIC_SEQ_CST);
		CHECK(epoll_wait(set, &event, 1, -1) == 1);
		__atomic_store_n(&seen->waits[me], 0, __ATOMIC_SEQ_CST);
		if (event.data.u64 == 2)
			_exit(0);
		connection = accept(listener, NULL, NULL);
		if (connection < 0) {
			CHECK(errno == EAGAIN);
			seen->in_vain[me]++;
			continue;
		}
		seen->served[me]++;
		CHECK(write(connection, "x", 1) == 1 && close(connection) == 0);
	}
}

/* Waits for all workers: a worker that does not wait has no place in line, and a busy machine may
 * take its time. */
static void wait_for_all(const pid_t *workers, const struct seen *seen)
{
	int at;
	for (at = 0; at < WORKERS; at++) {
		while (!__atomic_load_n(&seen->waits[at], __ATOMIC_SEQ_CST))
			sleep_ms(1);
		wait_until_asleep(workers[at]);
	}
}

static void connects(const struct sockaddr_in *address)
{
	char byte;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
	CHECK(read(fd, &byte, 1) == 1 && close(fd) == 0);
}
#endif

int main(void)
{
#ifdef KERNEL_ONLY
	return 77;
#else
	struct sockaddr_in address;
	socklen_t size = sizeof address;
	struct seen *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int rotating = epoll_create1(EPOLL_ROTATE), over[2], at, status, served = 0;
	pid_t workers[WORKERS];

	memset(&address, 0, sizeof address);
	address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(listener, 16) == 0 && pipe(over) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	CHECK(add(rotating, listener, EPOLLIN, 0) == 0);
	for (at = 0; at < WORKERS; at++) {
		workers[at] = fork();
		CHECK(workers[at] >= 0);
		if (workers[at] == 0)
			works(at, rotating, listener, over[0], seen);
	}
	for (at = 0; at < CONNECTIONS; at++) {
		wait_for_all(workers, seen);
		connects(&address);
	}
	wait_for_all(workers, seen);
	for (at = 0; at < WORKERS; at++) {
		/* A worker that was woken is last in the kernel's line when it sleeps again. */
		CHECK(seen->served[at] == CONNECTIONS / WORKERS && seen->in_vain[at] == 0);
		served += seen->served[at];
	}
	CHECK(served == CONNECTIONS);
	CHECK(write(over[1], "x", 1) == 1);
	for (at = 0; at < WORKERS; at++)
		CHECK(waitpid(workers[at], &status, 0) == workers[at] && status == 0);
	return 0;
#endif
}
