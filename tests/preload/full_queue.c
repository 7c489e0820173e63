/* The queue of signals is full (RLIMIT_SIGPENDING) while signals come in the midst of calls. Each one that was sent
 * is handled once, with its value. They are handled in the order in which they were sent, but for a few: one that is
 * sent while another one is delayed may come before it. The handler may use what its thread is using. The child of a
 * fork gets none of them. */
#include "../c/check.h"
#include <sys/resource.h>
#include <sys/wait.h>

enum { SIGNALS = 400, FEW = SIGNALS / 20 };

static int counter, set, ends[2];
static volatile int handled, unexpected, highest, late;
static volatile char seen[SIGNALS];
static pthread_t receiver;

static void use(void)
{
	struct epoll_event events[2];
	uint64_t value = 1;
	char byte = 'x';
	CHECK(write(counter, &value, sizeof value) == sizeof value);
	CHECK(write(ends[1], &byte, 1) == 1 || errno == EAGAIN);
	CHECK(epoll_wait(set, events, 2, 0) >= 0);
	CHECK(read(ends[0], &byte, 1) == 1 || errno == EAGAIN);
	CHECK(read(counter, &value, sizeof value) == sizeof value || errno == EAGAIN);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, counter, NULL) == 0 || errno == ENOENT);
	CHECK(add(set, counter, EPOLLIN | EPOLLET, 1) == 0 || errno == EEXIST);
}

static void handles(int signal, siginfo_t *info, void *context)
{
	int saved = errno, value = info->si_value.sival_int;
	(void)signal, (void)context;
	if (info->si_code != SI_QUEUE || value < 0 || value >= SIGNALS || seen[value]++)
		unexpected++;
	if (value < highest)
		late++;
	else
		highest = value;
	handled++;
	use();
	errno = saved;
}

static void send_all(int (*send_one)(int value))
{
	int at = 0;
	while (at < SIGNALS) {
		if (send_one(at) == 0)
			at++;
		else
			CHECK(errno == EAGAIN && sched_yield() == 0);
	}
}

static int send_to_parent(int at)
{
	union sigval value;
	value.sival_int = at;
	return sigqueue(getppid(), SIGRTMIN + 1, value);
}

static int send_to_thread(int at)
{
	union sigval value;
	value.sival_int = at;
	errno = pthread_sigqueue(receiver, SIGRTMIN + 1, value);
	return errno == 0 ? 0 : -1;
}

static void *sends(void *nothing)
{
	sigset_t all;
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	send_all(send_to_thread);
	return nothing;
}

static void receive_all(void)
{
	while (handled < SIGNALS)
		use();
	CHECK(handled == SIGNALS && unexpected == 0 && late <= FEW);
}

static void make(void)
{
	handled = highest = late = 0;
	memset((char *)seen, 0, sizeof seen);
	counter = eventfd(0, EFD_NONBLOCK);
	set = epoll_create1(0);
	CHECK(counter >= 0 && set >= 0 && pipe2(ends, O_NONBLOCK) == 0);
	CHECK(add(set, counter, EPOLLIN | EPOLLET, 1) == 0 && add(set, ends[0], EPOLLIN, 2) == 0);
}

static void from_a_process(void)
{
	sigset_t this, before;
	int status;
	pid_t child;
	sigemptyset(&this);
	sigaddset(&this, SIGRTMIN + 1);
	CHECK(sigprocmask(SIG_BLOCK, &this, &before) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		send_all(send_to_parent);
		_exit(0);
	}
	/* The kernel has those of before the fork. */
	make();
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	receive_all();
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void from_a_thread(void)
{
	pthread_t sender;
	receiver = pthread_self();
	make();
	CHECK(pthread_create(&sender, NULL, sends, NULL) == 0);
	receive_all();
	CHECK(pthread_join(sender, NULL) == 0);
}

/* The limit is for all signals that are queued for a user: one without other processes. */
static void become_a_user(void)
{
	if (geteuid() == 0)
		CHECK(setresuid(100000 + getpid(), 100000 + getpid(), 100000 + getpid()) == 0);
}

static int queued(void)
{
	char line[128];
	int queued = -1;
	FILE *status = fopen("/proc/self/status", "r");
	CHECK(status != NULL);
	while (queued < 0 && fgets(line, sizeof line, status) != NULL)
		sscanf(line, "SigQ: %d/", &queued);
	fclose(status);
	CHECK(queued >= 0);
	return queued;
}

static volatile int is_over;

/* Takes room in the queue, and leaves it again. */
static void *takes_room(void *nothing)
{
	struct timespec at_once = {0, 0};
	union sigval value = {0};
	sigset_t all, this;
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	sigemptyset(&this);
	sigaddset(&this, SIGRTMIN + 2);
	while (!is_over)
		if (pthread_sigqueue(pthread_self(), SIGRTMIN + 2, value) == 0)
			CHECK(sigtimedwait(&this, NULL, &at_once) == SIGRTMIN + 2);
	return nothing;
}

static void beside_another_thread(void)
{
	pthread_t other;
	CHECK(pthread_create(&other, NULL, takes_room, NULL) == 0);
	from_a_thread();
	is_over = 1;
	CHECK(pthread_join(other, NULL) == 0);
}

static void send_here(int value)
{
	receiver = pthread_self();
	CHECK(send_to_thread(value) == 0);
}

static void set_limit(int limit_of_user)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_SIGPENDING, &limit) == 0);
	limit.rlim_cur = limit_of_user;
	CHECK(setrlimit(RLIMIT_SIGPENDING, &limit) == 0);
}

static volatile int children, handled_here, first_value;

static void forks(int signal, siginfo_t *info, void *context)
{
	sigset_t this;
	int status;
	pid_t child;
	(void)context;
	if (handled_here++ == 0)
		first_value = info->si_value.sival_int;
	if (children++ > 0)
		return;
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		handled_here = 0;
		set_limit(queued() + 2);
		send_here(7);
		sigemptyset(&this);
		sigaddset(&this, signal);
		CHECK(sigprocmask(SIG_UNBLOCK, &this, NULL) == 0);
		CHECK(handled_here == 1 && first_value == 7);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* The child of a fork has none of the signals that are pending in its parent. */
static void a_handler_forks(void)
{
	struct sigaction action;
	struct epoll_event event;
	sigset_t this, before;
	int base;
	make();
	CHECK(read(counter, &(uint64_t){0}, sizeof(uint64_t)) == -1 && errno == EAGAIN);
	memset(&action, 0, sizeof action);
	action.sa_sigaction = forks;
	action.sa_flags = SA_SIGINFO;
	CHECK(sigaction(SIGRTMIN + 1, &action, NULL) == 0);
	sigemptyset(&this);
	sigaddset(&this, SIGRTMIN + 1);
	CHECK(sigprocmask(SIG_BLOCK, &this, &before) == 0);
	base = queued();
	set_limit(base + 2);
	send_here(0), send_here(1);
	/* The first one leaves, and there is no room for it any more. */
	set_limit(base);
	FAILS(epoll_pwait(set, &event, 1, -1, &before), EINTR);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	CHECK(handled_here == 2 && first_value == 0);
}

int main(void)
{
	struct sigaction action;
	struct rlimit limit;
	int most;
	become_a_user();
	memset(&action, 0, sizeof action);
	action.sa_sigaction = handles;
	action.sa_flags = SA_SIGINFO | SA_RESTART;
	CHECK(sigaction(SIGRTMIN + 1, &action, NULL) == 0);
	CHECK(getrlimit(RLIMIT_SIGPENDING, &limit) == 0);
	for (most = 1; most <= 3; most += 2) {
		limit.rlim_cur = queued() + most;
		CHECK(setrlimit(RLIMIT_SIGPENDING, &limit) == 0);
		from_a_process();
		from_a_thread();
	}
	set_limit(queued() + 4);
	beside_another_thread();
	a_handler_forks();
	return 0;
}
