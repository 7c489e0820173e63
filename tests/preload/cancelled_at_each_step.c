/* A thread with the type PTHREAD_CANCEL_ASYNCHRONOUS is cancelled at each instruction of a call. It
 * runs its cleanup handlers. */
#include "../c/check.h"

#ifdef __x86_64__
#include "steps.h"
#include <dlfcn.h>
#include <unwind.h>

/* A library may defer cancellation within a call. Then it suffices to try one of this many
 * instructions. */
enum { LONGEST = 100000, PART = 50 };

static int ends[2], counter, set, plain;
static long at, cancels_at, cleanups;
static char is_asynchronous[LONGEST];
/* The C library's function, which only changes the type. */
static int (*set_type)(int, int *);

static void read_counter(void)
{
	uint64_t value;
	CHECK(read(counter, &value, sizeof value) == -1 && errno == EAGAIN);
}

static void read_pipe(void)
{
	char byte;
	CHECK(read(ends[0], &byte, 1) == -1 && errno == EAGAIN);
}

static void write_counter(void)
{
	uint64_t value = 0;
	CHECK(write(counter, &value, sizeof value) == sizeof value);
}

static void poll_both(void)
{
	struct pollfd both[2] = {{counter, POLLIN, 0}, {ends[0], POLLIN, 0}};
	CHECK(poll(both, 2, 0) == 0);
}

static void look_into_set(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(set, &event, 1, 0) == 0);
}

static void look_into_plain_set(void)
{
	struct epoll_event event;
	CHECK(epoll_wait(plain, &event, 1, 0) == 0);
}

static void receive(void)
{
	char byte;
	FAILS(recv(counter, &byte, 1, 0), ENOTSOCK);
}

static void close_nothing(void)
{
	FAILS(close(-1), EBADF);
}

static void select_counter(void)
{
	struct timeval limit = {0, 0};
	fd_set numbers;
	FD_ZERO(&numbers);
	FD_SET(counter, &numbers);
	CHECK(select(counter + 1, &numbers, NULL, NULL, &limit) == 0);
}

static void read_to_buffers(void)
{
	char room[8];
	struct iovec buffers[2] = {{room, 4}, {room + 4, 4}};
	CHECK(readv(ends[0], buffers, 2) == -1 && errno == EAGAIN);
}

static void send_message(void)
{
	struct msghdr message = {0};
	FAILS((int)sendmsg(counter, &message, 0), ENOTSOCK);
}

static const struct {
	const char *name;
	void (*make)(void);
} calls[] = {
	{"read of an eventfd", read_counter},
	{"read of a pipe", read_pipe},
	{"write", write_counter},
	{"poll", poll_both},
	{"select", select_counter},
	{"epoll_wait", look_into_set},
	{"epoll_wait in a plain set", look_into_plain_set},
	{"recv", receive},
	{"readv", read_to_buffers},
	{"sendmsg", send_message},
	{"close", close_nothing},
};

__attribute__((noinline)) static void begin(void (*call)(void))
{
	begin_steps();
	call();
	end_steps();
}

static void traps(int number, siginfo_t *info, void *context)
{
	int kind, saved = errno;
	void *place = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
	(void)number, (void)info;
	/* The steps begin and end with the stack moved. */
	if (_Unwind_FindEnclosingFunction(place) == (void *)begin)
		return;
	at++;
	if (cancels_at == 0) {
		CHECK(set_type(PTHREAD_CANCEL_DEFERRED, &kind) == 0 && at < LONGEST);
		is_asynchronous[at] = kind == PTHREAD_CANCEL_ASYNCHRONOUS;
		CHECK(set_type(kind, NULL) == 0);
	} else if (at == cancels_at) {
		end_steps_of(context);
		CHECK(pthread_cancel(pthread_self()) == 0);
	}
	errno = saved;
}

static void count(void *nothing)
{
	(void)nothing;
	cleanups++;
}

static void *makes(void *call)
{
	CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
	pthread_cleanup_push(count, NULL);
	begin(*(void (**)(void))call);
	pthread_cleanup_pop(0);
	return NULL;
}

/* Makes a call in a thread that cancels itself at instruction `place`, or never if that is 0.
 * Returns whether it reached the instruction. */
static int is_cancelled(const void *call, long place)
{
	pthread_t thread;
	void *result;
	at = 0, cancels_at = place, cleanups = 0;
	CHECK(pthread_create(&thread, NULL, makes, (void *)(uintptr_t)call) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	return result == PTHREAD_CANCELED;
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = traps, .sa_flags = SA_SIGINFO};
	void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	int call, lost = 0;
	CHECK(library != NULL);
	set_type = (int (*)(int, int *))dlsym(library, "pthread_setcanceltype");
	CHECK(set_type != NULL);
	counter = eventfd(0, EFD_NONBLOCK), set = epoll_create1(0), plain = epoll_create1(0);
	CHECK(counter >= 0 && set >= 0 && plain >= 0 && pipe2(ends, O_NONBLOCK) == 0);
	CHECK(add(set, counter, EPOLLIN, 1) == 0);
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	for (call = 0; call < (int)(sizeof calls / sizeof *calls); call++) {
		long place, last;
		/* The first call resolves symbols, and initializes the library. */
		CHECK(!is_cancelled(&calls[call].make, 0));
		CHECK(!is_cancelled(&calls[call].make, 0) && at > 5);
		for (place = 1, last = at; place <= last; place++) {
			if (!is_asynchronous[place] && place % PART != 0)
				continue;
			if (is_cancelled(&calls[call].make, place) ? cleanups == 1 : at < place)
				continue;
			fprintf(stderr, "%s: no cleanup at instruction %ld\n", calls[call].name, place);
			lost = 1;
		}
	}
	return lost;
}
#else
int main(void) { return 77; }
#endif
