/* The test program of the EPOLL_ROTATE patch, as written for its kernel. 100 workers, each with a
 * set of its own, take numbers out of one pipe. Their sets watch a set that watches the pipe. It
 * prints the time, the number of context switches, and how even the shares are.
 *
 * A kernel without EPOLL_ROTATE runs it with a plain set in between, as the program did for
 * comparison. Each number must arrive once in any case. If the set rotates, each worker must have a
 * share, and there must be no thundering herd. The bounds are far from the usual results, because a
 * loaded machine delays threads. */
#include "check.h"

#include <semaphore.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef EPOLL_ROTATE
#define EPOLL_ROTATE 1
#endif

enum { WORKERS = 100, EVENTS = 20000, ROOM = 10000, END = -1 };

static int source, pipe_fds[2];
static pthread_t threads[WORKERS];
static int ids[WORKERS], tids[WORKERS];
static pthread_barrier_t all_here;
static long served[WORKERS], in_vain[WORKERS];
static char arrivals[EVENTS];
static int taken;
static sem_t finished;
static struct timespec end;
static struct rusage usage_at_end;

static void *works(void *which)
{
	int id = *(int *)which, epfd = epoll_create1(0), number;
	struct epoll_event *events = calloc(ROOM, sizeof *events);

	CHECK(events != NULL && epfd >= 0 && add(epfd, source, EPOLLIN, 0) == 0);
	tids[id] = (int)syscall(SYS_gettid);
	pthread_barrier_wait(&all_here);
	for (;;) {
		CHECK(epoll_wait(epfd, events, ROOM, -1) == 1);
		if (read(pipe_fds[0], &number, sizeof number) != sizeof number) {
			CHECK(errno == EAGAIN);
			in_vain[id]++;
			continue;
		}
		if (number == END)
			break;
		CHECK(number >= 0 && number < EVENTS);
		arrivals[number]++;
		served[id]++;
		if (__atomic_add_fetch(&taken, 1, __ATOMIC_ACQ_REL) == EVENTS) {
			clock_gettime(CLOCK_MONOTONIC, &end);
			getrusage(RUSAGE_SELF, &usage_at_end);
			sem_post(&finished);
		}
	}
	CHECK(close(epfd) == 0);
	free(events);
	return NULL;
}

/* Passes all numbers once, with new workers and a new source. Returns Jain's index of the shares: 1
 * if all are equal, 1/WORKERS if one worker got all. Also returns 1 if the source does not rotate.
 */
static double run(void)
{
	struct timespec begin;
	struct rusage usage;
	double sum = 0, squares = 0, fairness;
	long fewest = EVENTS, most = 0, vain = 0, switches;
	int at, number, rotates;

	memset(arrivals, 0, sizeof arrivals);
	memset(served, 0, sizeof served);
	memset(in_vain, 0, sizeof in_vain);
	taken = 0;
	source = epoll_create1(EPOLL_ROTATE);
	rotates = source >= 0;
	if (!rotates) {
		CHECK(errno == EINVAL);
		source = epoll_create1(0);
	}
	CHECK(pipe(pipe_fds) == 0 && fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK) == 0);
	CHECK(add(source, pipe_fds[0], EPOLLIN, 0) == 0);
	CHECK(sem_init(&finished, 0, 0) == 0);
	CHECK(pthread_barrier_init(&all_here, NULL, WORKERS + 1) == 0);
	for (at = 0; at < WORKERS; at++) {
		ids[at] = at;
		CHECK(pthread_create(&threads[at], NULL, works, &ids[at]) == 0);
	}
	pthread_barrier_wait(&all_here);
	/* A worker that has not begun to wait has no place in line. */
	for (at = 0; at < WORKERS; at++)
		wait_until_asleep(tids[at]);

	getrusage(RUSAGE_SELF, &usage);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (number = 0; number < EVENTS; number++)
		CHECK(write(pipe_fds[1], &number, sizeof number) == sizeof number);
	while (sem_wait(&finished) != 0)
		CHECK(errno == EINTR);
	number = END;
	for (at = 0; at < WORKERS; at++)
		CHECK(write(pipe_fds[1], &number, sizeof number) == sizeof number);
	for (at = 0; at < WORKERS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);

	for (at = 0; at < EVENTS; at++)
		CHECK(arrivals[at] == 1);
	for (at = 0; at < WORKERS; at++) {
		sum += (double)served[at];
		squares += (double)served[at] * (double)served[at];
		fewest = served[at] < fewest ? served[at] : fewest;
		most = served[at] > most ? served[at] : most;
		vain += in_vain[at];
	}
	fairness = sum * sum / (WORKERS * squares);
	switches = usage_at_end.ru_nvcsw - usage.ru_nvcsw + usage_at_end.ru_nivcsw - usage.ru_nivcsw;
	printf("%s: %.2f ms, %.3f switches and %.3f reads in vain per event, fairness %.4f, "
	       "shares %ld..%ld\n",
	       rotates ? "rotating" : "plain",
	       (double)(end.tv_sec - begin.tv_sec) * 1e3 +
		       (double)(end.tv_nsec - begin.tv_nsec) / 1e6,
	       (double)switches / EVENTS, (double)vain / EVENTS, fairness, fewest, most);
	CHECK(close(source) == 0 && close(pipe_fds[0]) == 0 && close(pipe_fds[1]) == 0);
	CHECK(sem_destroy(&finished) == 0 && pthread_barrier_destroy(&all_here) == 0);
	if (!rotates)
		return 1;
	CHECK(fewest > 0);
	/* A wakeup of all workers costs nearly one switch for each of them. */
	CHECK(switches < (long)EVENTS * WORKERS / 3);
	return fairness;
}

int main(void)
{
#ifdef UPOLL_REDIRECT
	int tries = 0;

	/* Workers take turns, so shares differ only by the turns that a worker misses while it does not
	 * run. On a loaded machine a worker may miss most of a run. */
	while (run() <= 0.5)
		CHECK(++tries < 5);
#else
	/* A source in the kernel also has the kernel's line. */
	run();
#endif
	return 0;
}
