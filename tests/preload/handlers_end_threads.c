/* Signal handlers end their thread in a call that sleeps. Its cleanup handlers run, and the objects
 * of the call stay consistent. */
#include "sleeping_calls.h"

static volatile int cleaned, has_begun;

static void ends(int signal)
{
	(void)signal;
	pthread_exit((void *)&cleaned);
}

static void cleans(void *nothing)
{
	(void)nothing;
	cleaned++;
}

static void polls(void)
{
	struct pollfd entry = {counter, POLLIN, 0};
	poll(&entry, 1, -1);
}

static void *runs(void *call)
{
	pthread_cleanup_push(cleans, NULL);
	has_begun = 1;
	(*(void (**)(void))call)();
	pthread_cleanup_pop(0);
	return NULL;
}

int main(void)
{
	static void (*const CALLS[])(void) = {waits, waits_with_a_mask, polls, polls_with_a_mask,
					      selects, reads, reads_a_pipe, receives};
	struct epoll_event event;
	int at;
	alarm(200);
	CHECK(signal(SIGUSR1, ends) != SIG_ERR);
	CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	counter = eventfd(0, 0), set = epoll_create1(0);
	CHECK(counter >= 0 && set >= 0 && add(set, counter, EPOLLIN, 1) == 0);
	for (at = 0; at < (int)(sizeof CALLS / sizeof *CALLS); at++) {
		pthread_t thread;
		void *result;
		has_begun = 0;
		CHECK(pthread_create(&thread, NULL, runs, (void *)&CALLS[at]) == 0);
		while (!has_begun)
			sleep_ms(1);
		sleep_ms(50);
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		CHECK(pthread_join(thread, &result) == 0);
		printf("%d\n", at), fflush(stdout);
		CHECK(result == &cleaned && cleaned == at + 1);
	}
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(epoll_wait(set, &event, 1, 0) == 1 && event.data.u64 == 1);
	return 0;
}
