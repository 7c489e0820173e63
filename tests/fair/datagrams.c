/* Workers share a datagram socket. With UPOLL_FAIR_DATAGRAMS a message wakes one of them, and they take turns. Prints for each
 * call "one" or "all", for how many workers a message wakes, and "ok" if the message of a worker that is killed as it wakes
 * comes to another one. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 4, MESSAGES = 400 };
enum call { EPOLL, EDGE, POLL, SELECT, CALLS };
static const char *const calls[] = {"epoll", "epoll, edge-triggered", "poll", "select"};

static struct { atomic_long switches[WORKERS], received[WORKERS]; atomic_int answered, has_to_die; } *shared;
static int sock;

static long switches(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return used.ru_nvcsw;
}

static void work(enum call call, int worker)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN | (call == EDGE ? EPOLLET : 0)};

	epoll_ctl(set, EPOLL_CTL_ADD, sock, &event);
	for (;;) {
		struct pollfd entry = {.fd = sock, .events = POLLIN};
		fd_set read;
		char byte;

		FD_ZERO(&read);
		FD_SET(sock, &read);
		if ((call == POLL ? poll(&entry, 1, -1) : call == SELECT ? select(sock + 1, &read, NULL, NULL, NULL)
			: epoll_wait(set, &event, 1, -1)) < 1)
			continue;
		if (atomic_exchange(&shared->has_to_die, 0))
			raise(SIGKILL);
		while (recv(sock, &byte, 1, MSG_DONTWAIT) == 1) {
			shared->received[worker]++;
			atomic_fetch_add(&shared->answered, 1);
		}
		shared->switches[worker] = switches();
	}
}

/* Sends a message, and waits until a worker has it. */
static int answered(int client, const struct sockaddr *address, socklen_t size)
{
	int before = shared->answered, waited = 0;

	if (sendto(client, "x", 1, 0, address, size) != 1)
		return 0;
	while (shared->answered == before && waited++ < 60000)
		usleep(1000);
	/* So that the worker sleeps again. */
	usleep(500);
	return shared->answered != before;
}

int main(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;

	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (enum call call = EPOLL; call < CALLS; call++) {
		pid_t workers[WORKERS];
		long least = MESSAGES, sum = 0;
		int client = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), i;

		memset(shared, 0, sizeof *shared);
		sock = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		address.sin_port = 0;
		if (bind(sock, (struct sockaddr *)&address, size) || getsockname(sock, (struct sockaddr *)&address, &size))
			return 1;
		for (i = 0; i < WORKERS; i++)
			if (!(workers[i] = fork())) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				work(call, i);
			}
		usleep(200000);
		for (i = 0; i < MESSAGES; i++)
			if (!answered(client, (struct sockaddr *)&address, size))
				return puts("a message was lost"), 1;
		for (i = 0; i < WORKERS; i++) {
			sum += shared->switches[i];
			if (shared->received[i] < least)
				least = shared->received[i];
		}
		printf("%s: %s", calls[call], sum < 2 * MESSAGES ? "one" : "all");
		/* A worker that is woken alone is one of those that take turns. */
		printf("%s", sum < 2 * MESSAGES && least < MESSAGES / WORKERS / 2 ? ", but not in turn" : "");
		shared->has_to_die = 1;
		printf(", %s\n", answered(client, (struct sockaddr *)&address, size) ? "ok" : "lost");
		for (i = 0; i < WORKERS; i++) {
			kill(workers[i], SIGKILL);
			waitpid(workers[i], NULL, 0);
		}
		close(sock);
		close(client);
	}
	return 0;
}
