/* A process without free fds waits for an eventfd and a kernel fd together, by poll, ppoll, select
 * and pselect. It is the first such call of each thread, so nothing is cached. */
#include "check.h"
#include <sys/resource.h>

enum { FDS = 60 };

struct wait {
	int counter, socket, is_other, has_waited;
	int (*waits)(struct wait *, int milliseconds);
};

static int by_poll(struct wait *wait, int milliseconds)
{
	struct pollfd entries[] = {{wait->counter, POLLIN, 0}, {wait->socket, POLLIN, 0}};
	int found = poll(entries, 2, milliseconds);
	CHECK(found <= 0 || entries[wait->is_other].revents == POLLIN);
	return found;
}

static int by_ppoll(struct wait *wait, int milliseconds)
{
	struct pollfd entries[] = {{wait->counter, POLLIN, 0}, {wait->socket, POLLIN, 0}};
	struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	sigset_t mask;
	int found;
	sigfillset(&mask);
	found = ppoll(entries, 2, &limit, &mask);
	CHECK(found <= 0 || entries[wait->is_other].revents == POLLIN);
	return found;
}

static int by_select(struct wait *wait, int milliseconds)
{
	struct timeval limit = {milliseconds / 1000, milliseconds % 1000 * 1000};
	int most = wait->counter > wait->socket ? wait->counter : wait->socket, found;
	fd_set set;
	FD_ZERO(&set);
	FD_SET(wait->counter, &set);
	FD_SET(wait->socket, &set);
	found = select(most + 1, &set, NULL, NULL, &limit);
	CHECK(found <= 0 || FD_ISSET(wait->is_other ? wait->socket : wait->counter, &set));
	return found;
}

static int by_pselect(struct wait *wait, int milliseconds)
{
	struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	int most = wait->counter > wait->socket ? wait->counter : wait->socket, found;
	fd_set set;
	sigset_t mask;
	FD_ZERO(&set);
	FD_SET(wait->counter, &set);
	FD_SET(wait->socket, &set);
	sigfillset(&mask);
	found = pselect(most + 1, &set, NULL, NULL, &limit, &mask);
	CHECK(found <= 0 || FD_ISSET(wait->is_other ? wait->socket : wait->counter, &set));
	return found;
}

static void *waits(void *argument)
{
	struct wait *wait = argument;
	CHECK(wait->waits(wait, 10) == 0);
	__atomic_store_n(&wait->has_waited, 1, __ATOMIC_SEQ_CST);
	CHECK(wait->waits(wait, 60000) == 1);
	return NULL;
}

static void at_the_limit(int (*by)(struct wait *, int), int is_other)
{
	struct wait wait = {eventfd(0, 0), -1, is_other, 0, by};
	int used[FDS], count = 0, sockets[2];
	uint64_t value;
	char byte;
	pthread_t thread;
	CHECK(wait.counter >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	wait.socket = sockets[0];
	while ((used[count] = dup(0)) >= 0)
		count++;
	CHECK(errno == EMFILE && count > 0);
	CHECK(pthread_create(&thread, NULL, waits, &wait) == 0);
	while (!__atomic_load_n(&wait.has_waited, __ATOMIC_SEQ_CST))
		sleep_ms(5);
	sleep_ms(50);
	if (is_other)
		CHECK(write(sockets[1], "x", 1) == 1);
	else
		CHECK(eventfd_write(wait.counter, 3) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	if (is_other)
		CHECK(read(wait.socket, &byte, 1) == 1 && byte == 'x');
	else
		CHECK(eventfd_read(wait.counter, &value) == 0 && value == 3);
	while (count > 0)
		CHECK(close(used[--count]) == 0);
	CHECK(close(wait.counter) == 0 && close(sockets[0]) == 0 && close(sockets[1]) == 0);
}

int main(void)
{
	int (*const all[])(struct wait *, int) = {by_poll, by_ppoll, by_select, by_pselect};
	struct rlimit limit;
	unsigned at;
	alarm(200);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	/* The hard limit stays, because valgrind does not allow a change. */
	limit.rlim_cur = FDS;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (at = 0; at < sizeof all / sizeof *all; at++) {
		at_the_limit(all[at], 0);
		at_the_limit(all[at], 1);
	}
	return 0;
}
