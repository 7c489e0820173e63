/* Threads are cancelled while they block, and at calls that do not block. */
#include "../c/check.h"
#include <sys/epoll.h>

enum how { READ, READV, WRITE, POLL, PPOLL, SELECT, PSELECT, WAIT, PWAIT, EVENTFD_READ, HOWS };

static const char *const names[] = {"read", "readv", "write", "poll", "ppoll", "select",
				    "pselect", "epoll_wait", "epoll_pwait", "eventfd_read"};

struct call {
	enum how how;
	int fd, set;
	int is_full;
	int cleaned;
};

static void cleans(void *call)
{
	((struct call *)call)->cleaned = 1;
}

/* Blocks until it is cancelled. */
static void *blocks(void *argument)
{
	struct call *call = argument;
	struct epoll_event event;
	uint64_t value = 1;
	struct iovec place = {&value, sizeof value};
	struct pollfd entry;
	fd_set in;
	sigset_t mask;
	sigemptyset(&mask);
	entry.fd = call->fd, entry.events = POLLIN;
	FD_ZERO(&in);
	FD_SET(call->fd, &in);
	pthread_cleanup_push(cleans, call);
	switch (call->how) {
	case READ: read(call->fd, &value, sizeof value); break;
	case READV: readv(call->fd, &place, 1); break;
	case WRITE:
		value = UINT64_MAX - 1;
		for (;;)
			write(call->fd, &value, sizeof value);
	case POLL: poll(&entry, 1, -1); break;
	case PPOLL: ppoll(&entry, 1, NULL, &mask); break;
	case SELECT: select(call->fd + 1, &in, NULL, NULL, NULL); break;
	case PSELECT: pselect(call->fd + 1, &in, NULL, NULL, NULL, &mask); break;
	case WAIT: epoll_wait(call->set, &event, 1, -1); break;
	case PWAIT: epoll_pwait(call->set, &event, 1, -1, &mask); break;
	case EVENTFD_READ: eventfd_read(call->fd, &value); break;
	case HOWS: break;
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void is_cancelled(enum how how, int fd, const char *what, int wait)
{
	struct call call = {how, fd, epoll_create1(0), 0, 0};
	pthread_t thread;
	struct timespec limit;
	void *result;
	CHECK(add(call.set, fd, EPOLLIN, 1) == 0);
	CHECK(pthread_create(&thread, NULL, blocks, &call) == 0);
	if (wait)
		sleep_ms(20);
	CHECK(pthread_cancel(thread) == 0);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 60;
	if (pthread_timedjoin_np(thread, &result, &limit) != 0) {
		fprintf(stderr, "%s of %s is not cancelled\n", names[how], what);
		exit(1);
	}
	CHECK(result == PTHREAD_CANCELED && call.cleaned);
	close(call.set);
}

/* A thread that has disabled cancellation. */
static void *is_deaf(void *argument)
{
	struct call *call = argument;
	uint64_t value;
	int before;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
	CHECK(read(call->fd, &value, sizeof value) == sizeof value && value == 7);
	pthread_cleanup_push(cleans, call);
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before) == 0);
	read(call->fd, &value, sizeof value);
	pthread_cleanup_pop(0);
	return NULL;
}

int main(void)
{
	int fds[2], fd, wait;
	enum how how;
	struct call call;
	pthread_t thread;
	void *result;
	for (wait = 0; wait < 2; wait++)
		for (how = READ; how < HOWS; how++) {
			CHECK(pipe(fds) == 0);
			if (how != EVENTFD_READ)
				is_cancelled(how, fds[how == WRITE], "a pipe", wait);
			close(fds[0]), close(fds[1]);
			fd = eventfd(0, 0);
			is_cancelled(how, fd, "an eventfd", wait);
			close(fd);
		}
	memset(&call, 0, sizeof call);
	call.fd = eventfd(0, 0);
	CHECK(pthread_create(&thread, NULL, is_deaf, &call) == 0);
	sleep_ms(20);
	CHECK(pthread_cancel(thread) == 0);
	sleep_ms(20);
	CHECK(eventfd_write(call.fd, 7) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && call.cleaned);
	/* The object still works. */
	CHECK(eventfd_write(call.fd, 1) == 0 && eventfd_write(call.fd, 1) == 0);
	close(call.fd);
	return 0;
}
