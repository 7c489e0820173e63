/* pthread_cancel(3) is no cancellation point. A call whose thread has disabled cancellation keeps
 * its time limit. */
#include "../c/check.h"
#include <sched.h>

static int never, counter;
static volatile int waits, is_through;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void on_one_processor(int policy)
{
	struct sched_param none = {0};
	cpu_set_t all, one;
	int first = 0;
	CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
	CHECK(sched_setscheduler(0, policy, &none) == 0);
}

/* A thread that does not run before the thread that cancels it sleeps. */
static void *is_blocked(void *nothing)
{
	uint64_t count;
	(void)nothing;
	on_one_processor(SCHED_IDLE);
	waits = 1;
	CHECK(read(never, &count, sizeof count) == sizeof count);
	return NULL;
}

/* A thread that has been cancelled, and then cancels another one. */
static void *cancels(void *other)
{
	on_one_processor(SCHED_OTHER);
	CHECK(pthread_cancel(pthread_self()) == 0);
	CHECK(pthread_cancel(*(pthread_t *)other) == 0);
	is_through = 1;
	pthread_testcancel();
	return NULL;
}

/* Whether the thread makes a call on the object before it disables cancellation. */
static int calls_first;

static void *has_a_limit(void *milliseconds)
{
	struct pollfd entry = {counter, POLLIN, 0};
	double begun;
	if (calls_first)
		CHECK(poll(&entry, 1, 0) == 0);
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	waits = 1;
	begun = now();
	CHECK(poll(&entry, 1, *(int *)milliseconds) == 0);
	waits = 0;
	CHECK(now() - begun < 30);
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
	poll(&entry, 1, 0);
	/* Not reached. */
	_exit(4);
}

int main(void)
{
	pthread_t one, other;
	void *result;
	int limit = 1000;
	double begun;
	alarm(200);
	never = eventfd(0, 0), counter = eventfd(0, 0);
	CHECK(pthread_create(&one, NULL, is_blocked, NULL) == 0);
	while (!waits)
		sleep_ms(1);
	sleep_ms(20);
	CHECK(pthread_create(&other, NULL, cancels, &one) == 0);
	CHECK(pthread_join(other, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(is_through);
	CHECK(pthread_join(one, &result) == 0 && result == PTHREAD_CANCELED);

	/* Cancelled many times. */
	for (calls_first = 0; calls_first < 2; calls_first++) {
		waits = 0;
		CHECK(pthread_create(&one, NULL, has_a_limit, &limit) == 0);
		while (!waits)
			sleep_ms(1);
		begun = now();
		while (waits && now() - begun < 40) {
			sleep_ms(100);
			if (waits)
				CHECK(pthread_cancel(one) == 0);
		}
		CHECK(!waits);
		CHECK(pthread_join(one, &result) == 0 && result == PTHREAD_CANCELED);
	}
	return 0;
}
