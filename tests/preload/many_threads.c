/* 4100 threads write to eventfds, read from them and wait in sets at the same time. Each unit is read once, and no thread
 * waits for ever.
 *
 *   many_threads times   prints the processor time of calls while 10 and while 5000 other threads have made calls */
#include "../c/check.h"
#include <limits.h>

enum { THREADS = 4100, MOST = 5000, GROUPS = 64, ROUNDS = 10 };

static struct {
	int counter, set;
} groups[GROUPS];
static pthread_t threads[MOST];
/* The address of each is its thread's number. */
static char numbers[MOST];
static pthread_barrier_t all;
static uint64_t taken;

static int begin(int count, void *(*body)(void *))
{
	pthread_attr_t attributes;
	int at;
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN + 65536) == 0);
	for (at = 0; at < count; at++) {
		int error = pthread_create(&threads[at], &attributes, body, &numbers[at]);
		if (error == EAGAIN) {
			fprintf(stderr, "only %d threads\n", at);
			return 0;
		}
		CHECK(error == 0);
	}
	return 1;
}

static void *works(void *self)
{
	const int number = (int)((char *)self - numbers), counter = groups[number % GROUPS].counter;
	const int set = groups[number % GROUPS].set;
	int round;
	uint64_t value;
	pthread_barrier_wait(&all);
	for (round = 0; round < ROUNDS; round++) {
		struct epoll_event event;
		value = 1;
		CHECK(write(counter, &value, sizeof value) == sizeof value);
		do {
			/* There is a unit for each thread that has none yet. */
			CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == (uint64_t)counter);
		} while (read(counter, &value, sizeof value) == -1 && errno == EAGAIN);
		CHECK(value == 1);
		__atomic_fetch_add(&taken, value, __ATOMIC_SEQ_CST);
	}
	/* Some change the table of fds and the sets meanwhile. */
	if (number % 8 == 0) {
		int own = eventfd(0, EFD_NONBLOCK);
		CHECK(own >= 0 && add(set, own, EPOLLIN, 1) == 0);
		CHECK(epoll_ctl(set, EPOLL_CTL_DEL, own, NULL) == 0 && close(own) == 0);
	}
	/* All are there to the end. */
	pthread_barrier_wait(&all);
	return NULL;
}

static void *has_made_a_call(void *self)
{
	uint64_t value = 1;
	CHECK(write(groups[0].counter, &value, sizeof value) == sizeof value);
	pthread_barrier_wait(&all);
	pthread_barrier_wait(&all);
	return self;
}

static void writes_and_reads(void)
{
	uint64_t value = 1;
	CHECK(write(groups[1].counter, &value, sizeof value) == sizeof value);
	CHECK(read(groups[1].counter, &value, sizeof value) == sizeof value);
}

static void waits(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(groups[2].set, &event, 1, 0) == 1);
}

static void changes(void)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 3};
	CHECK(epoll_ctl(groups[3].set, EPOLL_CTL_MOD, groups[3].counter, &event) == 0);
}

static void polls(void)
{
	struct pollfd entries[2] = {{groups[2].counter, POLLIN, 0}, {groups[3].counter, POLLIN, 0}};
	CHECK(poll(entries, 2, 0) == 1);
}

static void opens_and_closes(void)
{
	int fd = eventfd(0, 0);
	CHECK(fd >= 0 && close(fd) == 0);
}

/* Returns the nanoseconds of the fastest of many batches. */
static double time_of(void (*calls)(void), int count)
{
	double fastest = 1e18;
	int batch, at;
	for (batch = 0; batch < 40; batch++) {
		struct timespec begun, ended;
		double time;
		CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun) == 0);
		for (at = 0; at < count; at++)
			calls();
		CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended) == 0);
		time = (double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec);
		if (time / count < fastest)
			fastest = time / count;
	}
	return fastest;
}

static const struct {
	const char *name;
	void (*calls)(void);
	int count;
} kinds[] = {{"write and read", writes_and_reads, 1000},
	     {"epoll_wait", waits, 1000},
	     {"epoll_ctl", changes, 1000},
	     {"poll", polls, 1000},
	     {"eventfd and close", opens_and_closes, 50}};

enum { KINDS = sizeof kinds / sizeof *kinds };

static void *measures(void *found)
{
	int kind;
	for (kind = 0; kind < KINDS; kind++)
		((double *)found)[kind] = time_of(kinds[kind].calls, kinds[kind].count);
	return NULL;
}

static int times(void)
{
	static const int counts[2] = {10, MOST};
	double found[2][KINDS];
	pthread_t last;
	int which, kind, at;
	CHECK(eventfd_write(groups[2].counter, 1) == 0);
	for (which = 0; which < 2; which++) {
		CHECK(pthread_barrier_init(&all, NULL, (unsigned)counts[which] + 1) == 0);
		if (!begin(counts[which], has_made_a_call))
			return 77;
		pthread_barrier_wait(&all);
		/* This thread comes last. */
		CHECK(pthread_create(&last, NULL, measures, found[which]) == 0 && pthread_join(last, NULL) == 0);
		pthread_barrier_wait(&all);
		for (at = 0; at < counts[which]; at++)
			CHECK(pthread_join(threads[at], NULL) == 0);
	}
	for (kind = 0; kind < KINDS; kind++)
		printf("%s: %.0f ns beside %d threads, %.0f beside %d\n", kinds[kind].name, found[0][kind], counts[0],
		       found[1][kind], counts[1]);
	return 0;
}

int main(int count, char **arguments)
{
	int at;
	uint64_t value;
	alarm(600);
	for (at = 0; at < GROUPS; at++) {
		CHECK((groups[at].counter = eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE)) >= 0);
		CHECK((groups[at].set = epoll_create1(0)) >= 0);
		CHECK(add(groups[at].set, groups[at].counter, EPOLLIN, (uint64_t)groups[at].counter) == 0);
	}
	if (count == 2 && strcmp(arguments[1], "times") == 0)
		return times();
	CHECK(pthread_barrier_init(&all, NULL, THREADS) == 0);
	if (!begin(THREADS, works))
		return 77;
	for (at = 0; at < THREADS; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	CHECK(taken == (uint64_t)THREADS * ROUNDS);
	for (at = 0; at < GROUPS; at++)
		FAILS(read(groups[at].counter, &value, sizeof value), EAGAIN);
	return 0;
}
