/* Two threads fork at the same time, while a third one demotes objects. Each child has the sets and
 * members that the kernel cannot serve, whatever the other threads were doing. */
#include "check.h"

#ifdef __SANITIZE_ADDRESS__
/* The demoting thread may hold AddressSanitizer's own lock, which a child takes when it makes its
 * sets. */
int main(void)
{
	return 77;
}
#else
#include <stdatomic.h>
#include <sys/wait.h>

#ifdef KERNEL_ONLY
#define EFD_IOC_SET_MAXIMUM _IOW('J', 0, uint64_t)
#endif

enum { FORKS = 300, FORKERS = 2, SETS = 4 };

static atomic_bool is_over;
static int sets[SETS], counter;

static void *forks(void *unused)
{
	struct epoll_event event;
	int round, at, status;
	(void)unused;
	for (round = 0; round < FORKS; round++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			for (at = 0; at < SETS; at++)
				if (epoll_wait(sets[at], &event, 1, 0) != 1 || event.data.u32 != 7)
					_exit(2 + at);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	return NULL;
}

static void *demotes(void *unused)
{
	(void)unused;
	while (!is_over) {
#ifndef KERNEL_ONLY
		int at;
		for (at = 0; at < SETS; at++)
			FAILS(upoll_demote(sets[at]), EOPNOTSUPP);
#else
		sleep_ms(1);
#endif
	}
	return NULL;
}

static void fork_from(int forkers)
{
	pthread_t threads[FORKERS];
	int at;
	for (at = 0; at < forkers; at++)
		CHECK(pthread_create(&threads[at], NULL, forks, NULL) == 0);
	for (at = 0; at < forkers; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
}

int main(void)
{
	uint64_t maximum = 4;
	pthread_t other;
	int at;
	counter = eventfd(1, EFD_NONBLOCK);
	CHECK(counter >= 0);
	/* The kernel's eventfd has no maximum. */
	ioctl(counter, EFD_IOC_SET_MAXIMUM, &maximum);
	for (at = 0; at < SETS; at++) {
		sets[at] = epoll_create1(0);
		CHECK(sets[at] >= 0 && add(sets[at], counter, EPOLLIN, 7) == 0);
	}
	fork_from(FORKERS);
	CHECK(pthread_create(&other, NULL, demotes, NULL) == 0);
	fork_from(1);
	is_over = 1;
	CHECK(pthread_join(other, NULL) == 0);
	return 0;
}
#endif
