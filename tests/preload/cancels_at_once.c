/* A thread with the type PTHREAD_CANCEL_ASYNCHRONOUS ends when it is cancelled in a call, and the
 * object that it waited for still works. */
#include "../c/check.h"

static int ends[2], full[2], pair[2], counter, set, cleanups;
static volatile int has_begun;

static void count(void *nothing)
{
	(void)nothing;
	cleanups++;
}

static void wait_for_both(void)
{
	struct pollfd both[2] = {{counter, POLLIN, 0}, {ends[0], POLLIN, 0}};
	poll(both, 2, -1);
}

static void wait_by_select(void)
{
	fd_set both;
	FD_ZERO(&both);
	FD_SET(counter, &both);
	FD_SET(ends[0], &both);
	select((counter > ends[0] ? counter : ends[0]) + 1, &both, NULL, NULL, NULL);
}

static void wait_in_set(void)
{
	struct epoll_event event;
	epoll_wait(set, &event, 1, -1);
}

static void read_counter(void)
{
	uint64_t value;
	CHECK(read(counter, &value, sizeof value) != 0);
}

static void read_pipe(void)
{
	char room[8];
	CHECK(read(ends[0], room, sizeof room) != 0);
}

static void read_pipe_to_buffers(void)
{
	char room[8];
	struct iovec buffers[2] = {{room, 4}, {room + 4, 4}};
	CHECK(readv(ends[0], buffers, 2) != 0);
}

static void write_pipe(void)
{
	char bytes[8] = "";
	CHECK(write(full[1], bytes, sizeof bytes) != 0);
}

static void receive(void)
{
	char room[8];
	CHECK(recv(pair[0], room, sizeof room, 0) != 0);
}

static void compute(void)
{
	for (;;)
		__asm__ volatile("" ::: "memory");
}

/* Makes calls without a pause. */
static void keep_busy(void)
{
	uint64_t value = 1;
	struct pollfd both[2] = {{counter, POLLIN, 0}, {ends[0], POLLIN, 0}};
	struct epoll_event event;
	for (;;) {
		CHECK(write(counter, &value, sizeof value) == 8);
		CHECK(poll(both, 2, 0) == 1);
		CHECK(epoll_wait(set, &event, 1, 0) == 1);
		CHECK(read(counter, &value, sizeof value) == 8);
	}
}

static void (*const calls[])(void) = {
	wait_for_both,	      wait_by_select, wait_in_set, read_counter, read_pipe,
	read_pipe_to_buffers, write_pipe,     receive,	   compute,	 keep_busy,
};

/* A function of its own: the caller's cleanup handlers run only if it is in a call. */
__attribute__((noinline)) static void begin(void (*call)(void))
{
	has_begun = 1;
	call();
}

static void *waits(void *call)
{
	int before;
	CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) == 0);
	CHECK(before == PTHREAD_CANCEL_DEFERRED);
	pthread_cleanup_push(count, NULL);
	begin(*(void (**)(void))call);
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel_in(const void *call)
{
	pthread_t thread;
	void *result;
	has_begun = 0;
	CHECK(pthread_create(&thread, NULL, waits, (void *)(uintptr_t)call) == 0);
	while (!has_begun)
		sleep_ms(1);
	sleep_ms(10);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

/* Wakes all queues: an entry of the ended thread would be used. */
static void use_all(void)
{
	uint64_t value;
	struct pollfd entry = {counter, POLLIN, 0};
	char byte;
	if (poll(&entry, 1, 0) == 1)
		CHECK(read(counter, &value, sizeof value) == 8);
	value = 1;
	CHECK(write(counter, &value, sizeof value) == 8 && read(counter, &value, sizeof value) == 8);
	CHECK(write(ends[1], "a", 1) == 1 && read(ends[0], &byte, 1) == 1);
	CHECK(write(pair[1], "b", 1) == 1 && read(pair[0], &byte, 1) == 1);
}

int main(void)
{
	static char bytes[1 << 16];
	struct epoll_event event = {.events = EPOLLIN};
	int at, last = (int)(sizeof calls / sizeof *calls);
	counter = eventfd(0, 0);
	set = epoll_create1(0);
	CHECK(counter >= 0 && set >= 0 && pipe(ends) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	CHECK(pipe(full) == 0 && write(full[1], bytes, sizeof bytes) == sizeof bytes);
	for (at = 0; at < last + 50; at++) {
		cancel_in(&calls[at < last ? at : last - 1]);
		CHECK(cleanups == at + 1);
		use_all();
	}
	CHECK(read(full[0], bytes, sizeof bytes) == sizeof bytes);
	FAILS(fcntl(full[0], F_SETFL, O_NONBLOCK) ? -1 : (int)read(full[0], bytes, 1), EAGAIN);
	return 0;
}
