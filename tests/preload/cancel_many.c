/* 5000 threads block in a read of an eventfd, and each one can be cancelled, the last as well as
 * the first. Afterwards new threads can be cancelled as well. */
#include "../c/check.h"
#include <limits.h>

enum { THREADS = 5000 };

static int counter, begun;
static pthread_t threads[THREADS];

static void *is_blocked(void *nothing)
{
	uint64_t count;
	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
	for (;;)
		CHECK(read(counter, &count, sizeof count) == sizeof count);
	return nothing;
}

static int begin(int count)
{
	pthread_attr_t attributes;
	int at;
	begun = 0;
	CHECK(pthread_attr_init(&attributes) == 0);
	CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN + 65536) == 0);
	for (at = 0; at < count; at++) {
		int error = pthread_create(&threads[at], &attributes, is_blocked, NULL);
		if (error == EAGAIN)
			return 0;
		CHECK(error == 0);
	}
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < count)
		sleep_ms(1);
	return 1;
}

static void end(int at)
{
	void *result;
	CHECK(pthread_cancel(threads[at]) == 0);
	CHECK(pthread_join(threads[at], &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

int main(void)
{
	int at;
	alarm(300);
	counter = eventfd(0, 0);
	CHECK(counter >= 0);
	if (!begin(THREADS))
		return 77;
	end(THREADS - 1);
	for (at = 0; at < THREADS - 1; at++)
		end(at);
	CHECK(begin(2));
	end(1), end(0);
	return 0;
}
