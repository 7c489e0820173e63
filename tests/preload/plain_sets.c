/* A plain set has kernel members in every state, and then gets an eventfd: with duplicates of the
 * set, other processes, sets above and below it, threads that sleep in it, polls and handlers. */
#include "../c/rights.h"
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { LEVEL = 1, EDGE, FIRED, ARMED, SHARED, COUNTER, INNER };
#define DATA(what) (0x1234567800000000 | (what))

static int set, counter, lines[5][2];

static void make_others(void)
{
	int at;
	set = epoll_create1(EPOLL_CLOEXEC);
	for (at = 0; at < 5; at++)
		CHECK(pipe(lines[at]) == 0);
}

static void make(void)
{
	make_others();
	counter = eventfd(0, EFD_NONBLOCK);
}

static void end(void)
{
	int at;
	close(set), close(counter);
	for (at = 0; at < 5; at++)
		close(lines[at][0]), close(lines[at][1]);
}

/* Returns the members that a wait reports, as bits. */
static unsigned found(int epfd, int timeout)
{
	struct epoll_event events[8];
	unsigned bits = 0;
	int at, count = epoll_wait(epfd, events, 8, timeout);
	CHECK(count >= 0);
	for (at = 0; at < count; at++) {
		CHECK(events[at].data.u64 >> 32 == 0x12345678);
		bits |= 1u << (unsigned)events[at].data.u32;
	}
	return bits;
}

static int member(int epfd, int op, int fd, uint32_t events, unsigned what)
{
	struct epoll_event event = {.events = events, .data.u64 = DATA(what)};
	return epoll_ctl(epfd, op, fd, &event);
}

static void add_member(int epfd, int fd, uint32_t events, unsigned what)
{
	CHECK(member(epfd, EPOLL_CTL_ADD, fd, events, what) == 0);
}

static void tell(int line) { CHECK(write(lines[line][1], "x", 1) == 1); }
static void hear(int line)
{
	char byte;
	CHECK(read(lines[line][0], &byte, 1) == 1);
}

static void counts(int epfd)
{
	uint64_t value;
	CHECK(found(epfd, 0) == 0);
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(found(epfd, 1000) == 1u << COUNTER);
	CHECK(eventfd_read(counter, &value) == 0 && found(epfd, 0) == 0);
}

/* Members keep their state, including reported edges and one-shot interests. */
static void members_keep_their_state(int waits_first)
{
	make();
	add_member(set, lines[0][0], EPOLLIN, LEVEL);
	add_member(set, lines[1][0], EPOLLIN | EPOLLET, EDGE);
	add_member(set, lines[2][0], EPOLLIN | EPOLLONESHOT, FIRED);
	add_member(set, lines[3][0], EPOLLIN | EPOLLONESHOT, ARMED);
	add_member(set, lines[4][0], EPOLLIN | EPOLLEXCLUSIVE, SHARED);
	if (waits_first) {
		tell(0), tell(1), tell(2), tell(4);
		CHECK(found(set, 0) == (1u << LEVEL | 1u << EDGE | 1u << FIRED | 1u << SHARED));
		CHECK(found(set, -1) == (1u << LEVEL | 1u << SHARED));
	}
	add_member(set, counter, EPOLLIN, COUNTER);
	FAILS(member(set, EPOLL_CTL_ADD, lines[0][0], EPOLLIN, 0), EEXIST);
	FAILS(member(set, EPOLL_CTL_MOD, lines[4][0], EPOLLIN, 0), EINVAL);
	if (waits_first) {
		CHECK(found(set, 0) == (1u << LEVEL | 1u << SHARED));
		hear(0), hear(4);
	}
	counts(set);
	tell(2);
	CHECK(found(set, 0) == (waits_first ? 0 : 1u << FIRED) && found(set, 0) == 0);
	CHECK(member(set, EPOLL_CTL_MOD, lines[2][0], EPOLLIN | EPOLLONESHOT, FIRED) == 0);
	CHECK(found(set, 0) == 1u << FIRED && found(set, 0) == 0);
	tell(1);
	CHECK(found(set, 0) == 1u << EDGE && found(set, 0) == 0);
	tell(3), tell(4);
	CHECK(found(set, 0) == (1u << ARMED | 1u << SHARED) && found(set, 1) == 1u << SHARED);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, lines[4][0], NULL) == 0 && found(set, 0) == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, lines[4][0], NULL), ENOENT);
	counts(set);
	/* A member leaves the set with its last fd. */
	tell(0);
	CHECK(found(set, 0) == 1u << LEVEL && close(lines[0][0]) == 0 && found(set, 0) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, lines[1][0], NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, lines[2][0], NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, lines[3][0], NULL) == 0);
	counts(set);
	end();
}

/* Every fd of the set refers to the same set, whenever and by whichever call it was made. */
static void fds_are_many(void)
{
	int copies[6], at;
	make();
	add_member(set, lines[0][0], EPOLLIN, LEVEL);
	copies[0] = dup(set), copies[1] = fcntl(set, F_DUPFD_CLOEXEC, 40);
	CHECK(dup2(copies[0], 60) == 60 && dup3(set, 61, O_CLOEXEC) == 61);
	copies[2] = 60, copies[3] = 61, copies[4] = (int)syscall(SYS_dup, copies[1]);
	CHECK(close(copies[0]) == 0);
	add_member(copies[1], counter, EPOLLIN, COUNTER);
	copies[5] = dup(set);
	for (at = 1; at < 6; at++)
		counts(copies[at]);
	CHECK(close(set) == 0);
	set = epoll_create1(0);
	counts(copies[2]), counts(copies[5]);
	/* The first fd now belongs to another set. */
	CHECK(found(set, 0) == 0);
	add_member(set, counter, EPOLLIN, COUNTER);
	tell(0);
	CHECK(found(copies[3], 0) == 1u << LEVEL && found(set, 0) == 0);
	counts(set);
	hear(0);
	for (at = 1; at < 6; at++)
		close(copies[at]);
	end();
	/* The same, if no call used the duplicate before it got another meaning. */
	make();
	CHECK(dup2(set, lines[1][1]) == lines[1][1] && dup2(lines[2][0], set) == set);
	add_member(lines[1][1], counter, EPOLLIN, COUNTER);
	FAILS(member(set, EPOLL_CTL_ADD, counter, EPOLLIN, COUNTER), EINVAL);
	counts(lines[1][1]);
	end();
}

/* Parent and child share one set. */
static void fork_comes_first(int eventfd_is_the_childs)
{
	int status;
	pid_t child;
	uint64_t value;
	make();
	add_member(set, lines[0][0], EPOLLIN, LEVEL);
	CHECK(found(set, 0) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		if (eventfd_is_the_childs) {
			add_member(set, counter, EPOLLIN, COUNTER);
			tell(1);
			hear(2);
		} else {
			hear(1);
		}
		CHECK(found(set, 10000) == 1u << COUNTER);
		CHECK(eventfd_read(counter, &value) == 0 && value == 5);
		CHECK(epoll_ctl(set, EPOLL_CTL_DEL, lines[0][0], NULL) == 0);
		_exit(0);
	}
	if (!eventfd_is_the_childs) {
		add_member(set, counter, EPOLLIN, COUNTER);
		tell(1);
	} else {
		hear(1);
	}
	CHECK(eventfd_write(counter, 5) == 0);
	if (eventfd_is_the_childs) {
		CHECK(found(set, 10000) == 1u << COUNTER);
		tell(2);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	FAILS(epoll_ctl(set, EPOLL_CTL_DEL, lines[0][0], NULL), ENOENT);
	counts(set);
	end();
}

/* The process has had no eventfd when it forks. The child adds one to the set. */
static void fork_comes_before_any_eventfd(void)
{
	int status, done[2];
	char byte;
	pid_t child;
	make_others();
	CHECK(pipe(done) == 0);
	add_member(set, lines[0][0], EPOLLIN, LEVEL);
	CHECK(found(set, 0) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		counter = eventfd(1, EFD_NONBLOCK);
		add_member(set, counter, EPOLLIN, COUNTER);
		tell(1);
		CHECK(read(done[0], &byte, 1) == 1);
		_exit(0);
	}
	hear(1);
	CHECK(found(set, 10000) == 1u << COUNTER);
	CHECK(write(done[1], "x", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	counter = eventfd(0, EFD_NONBLOCK);
	close(done[0]), close(done[1]);
	end();
}

/* An fd that was sent and received refers to the set, too. */
static void a_message_comes_first(void)
{
	int pair[2], received;
	make();
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	send_fd(pair[0], set);
	received = receive_fd(pair[1]);
	add_member(set, counter, EPOLLIN, COUNTER);
	counts(received);
	counts(set);
	close(received), close(pair[0]), close(pair[1]);
	end();
}

/* Nested sets. The eventfd is added to the inner or the outer one. */
static void sets_are_nested(int adds_to_inner, int waits_first)
{
	int inner;
	struct pollfd entry;
	make();
	inner = epoll_create1(0);
	add_member(inner, lines[0][0], EPOLLIN, LEVEL);
	add_member(set, inner, EPOLLIN, INNER);
	add_member(set, lines[1][0], EPOLLIN | EPOLLET, EDGE);
	if (waits_first) {
		CHECK(found(inner, 0) == 0);
		tell(0);
		CHECK(found(set, -1) == 1u << INNER && found(inner, 0) == 1u << LEVEL);
		hear(0);
		CHECK(found(set, 0) == 0);
	}
	add_member(adds_to_inner ? inner : set, counter, EPOLLIN, COUNTER);
	FAILS(member(inner, EPOLL_CTL_ADD, set, EPOLLIN, 0), ELOOP);
	tell(0);
	CHECK(found(set, 1000) == 1u << INNER);
	hear(0), tell(1);
	CHECK(found(set, 1000) == 1u << EDGE && found(set, 0) == 0);
	CHECK(eventfd_write(counter, 1) == 0);
	CHECK(found(set, 1000) == 1u << (adds_to_inner ? INNER : COUNTER));
	entry.fd = set, entry.events = POLLIN;
	CHECK(poll(&entry, 1, 60000) == 1 && entry.revents == POLLIN);
	CHECK(found(inner, 0) == (adds_to_inner ? 1u << COUNTER : 0));
	CHECK(close(inner) == 0 && found(set, 0) == (adds_to_inner ? 0 : 1u << COUNTER));
	end();
}

/* The call in which a thread sleeps. */
enum { WAIT, PWAIT, WAIT_IN_OUTER, POLL, SELECT, WAIT_BY_COPY, WAYS };
static int outer, copy, way;

static void *sleeps(void *timeout)
{
	struct pollfd entry = {set, POLLIN, 0};
	struct epoll_event event;
	sigset_t none;
	fd_set readable;
	int limit = *(int *)timeout;
	sigemptyset(&none);
	FD_ZERO(&readable);
	FD_SET(set, &readable);
	switch (way) {
	case WAIT: CHECK(epoll_wait(set, &event, 1, limit) == 1); break;
	case PWAIT: CHECK(epoll_pwait(set, &event, 1, limit, &none) == 1); break;
	case WAIT_IN_OUTER: CHECK(epoll_wait(outer, &event, 1, limit) == 1); break;
	case POLL: CHECK(poll(&entry, 1, limit) == 1); break;
	case SELECT: CHECK(select(set + 1, &readable, NULL, NULL, NULL) == 1); break;
	case WAIT_BY_COPY: CHECK(epoll_wait(copy, &event, 1, limit) == 1); break;
	}
	return NULL;
}

static void threads_sleep(int timeout, int count)
{
	pthread_t threads[3];
	int at;
	make();
	outer = epoll_create1(0), copy = dup(set);
	add_member(set, lines[0][0], EPOLLIN, LEVEL);
	/* Otherwise it is the call that the set is left to the kernel for. */
	if (way == WAIT_IN_OUTER)
		add_member(outer, set, EPOLLIN, INNER);
	for (at = 0; at < count; at++)
		CHECK(pthread_create(&threads[at], NULL, sleeps, &timeout) == 0);
	sleep_ms(20);
	add_member(set, counter, EPOLLIN, COUNTER);
	CHECK(eventfd_write(counter, 1) == 0);
	for (at = 0; at < count; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	CHECK(found(set, 0) == 1u << COUNTER);
	close(outer), close(copy);
	end();
}

/* A handler changes the set, directly before its thread waits in it or during the wait. */
static volatile sig_atomic_t is_changed;

static void changes(int number)
{
	(void)number;
	if (!is_changed) {
		add_member(set, counter, EPOLLIN, COUNTER);
		CHECK(eventfd_write(counter, 1) == 0);
		is_changed = 1;
	}
}

static void handlers_change_it(int round)
{
	struct sigaction action = {.sa_handler = changes, .sa_flags = SA_RESTART};
	struct itimerval time = {.it_value = {0, 20 + round % 97}};
	struct epoll_event event;
	make();
	is_changed = 0;
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
	while (!is_changed) {
		int count = epoll_wait(set, &event, 1, round % 3 ? 0 : -1);
		CHECK(count == 0 || count == 1 || (count == -1 && errno == EINTR));
	}
	CHECK(found(set, 0) == 1u << COUNTER);
	end();
}

/* Threads enter a wait in the set while another thread adds to it. */
static pthread_barrier_t barrier;
static void *waits_at_once(void *unused)
{
	struct epoll_event event;
	pthread_barrier_wait(&barrier);
	CHECK(epoll_wait(set, &event, 1, 60000) == 1 && event.data.u64 == DATA(COUNTER));
	return unused;
}

static void all_at_once(void)
{
	pthread_t threads[2];
	int at;
	make();
	CHECK(pthread_barrier_init(&barrier, NULL, 3) == 0);
	for (at = 0; at < 2; at++)
		CHECK(pthread_create(&threads[at], NULL, waits_at_once, NULL) == 0);
	pthread_barrier_wait(&barrier);
	add_member(set, counter, EPOLLIN, COUNTER);
	CHECK(eventfd_write(counter, 1) == 0);
	for (at = 0; at < 2; at++)
		CHECK(pthread_join(threads[at], NULL) == 0);
	end();
}

int main(void)
{
	int round;
	/* First of all. */
	fork_comes_before_any_eventfd();
	members_keep_their_state(0), members_keep_their_state(1);
	fds_are_many();
	fork_comes_first(0), fork_comes_first(1);
	a_message_comes_first();
	for (round = 0; round < 4; round++)
		sets_are_nested(round & 1, round & 2);
	for (way = 0; way < WAYS; way++)
		threads_sleep(-1, 1), threads_sleep(60000, 3);
	for (round = 0; round < 500; round++)
		handlers_change_it(round);
	for (round = 0; round < 200; round++)
		all_at_once();
	return 0;
}
