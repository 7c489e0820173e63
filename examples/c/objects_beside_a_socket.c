/* An object of one's own and a socket of the kernel's in one edge-triggered set.
 *
 * A thread produces numbers, and the main thread sends their squares through the socket. The numbers wait in a ring with
 * eight places. The main thread waits for the ring and the socket, and the producer for room in the ring.
 *
 * cc objects_beside_a_socket.c $(pkg-config --cflags --libs upoll) -pthread -o objects_beside_a_socket */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <upoll.h>

enum { PLACES = 8, NUMBERS = 100 };

static void check(int is_true, const char *what)
{
	if (!is_true) {
		perror(what);
		exit(1);
	}
}

/* ANCHOR: object */
struct ring {
	pthread_mutex_t lock;
	unsigned put, taken;
	int numbers[PLACES];
	int fd;
};

/* Any thread may call this, with locks of a set held: it takes only the ring's own lock. */
static uint32_t ring_poll(void *context)
{
	struct ring *ring = context;
	uint32_t events = 0;

	pthread_mutex_lock(&ring->lock);
	if (ring->put != ring->taken)
		events |= EPOLLIN;
	if (ring->put - ring->taken < PLACES)
		events |= EPOLLOUT;
	pthread_mutex_unlock(&ring->lock);
	return events;
}

/* Is called once, after the last close, when no call uses the ring any more. */
static void ring_release(void *context)
{
	struct ring *ring = context;

	pthread_mutex_destroy(&ring->lock);
	free(ring);
}

static struct ring *ring_create(void)
{
	struct upoll_object_ops ops = {sizeof ops, ring_poll, ring_release};
	struct ring *ring = calloc(1, sizeof *ring);

	check(ring != NULL, "calloc");
	pthread_mutex_init(&ring->lock, NULL);
	ring->fd = upoll_object_create(&ops, ring, O_CLOEXEC);
	check(ring->fd >= 0, "upoll_object_create");
	return ring;
}
/* ANCHOR_END: object */

/* ANCHOR: change */
/* Returns whether there was a place. */
static int ring_put(struct ring *ring, int number)
{
	int has_place;

	pthread_mutex_lock(&ring->lock);
	has_place = ring->put - ring->taken < PLACES;
	if (has_place)
		ring->numbers[ring->put++ % PLACES] = number;
	pthread_mutex_unlock(&ring->lock);
	/* After the change, and without the lock, which ring_poll takes. */
	if (has_place)
		upoll_object_wake(ring->fd, EPOLLIN);
	return has_place;
}

/* Returns whether there was a number. */
static int ring_take(struct ring *ring, int *number)
{
	int has_number;

	pthread_mutex_lock(&ring->lock);
	has_number = ring->put != ring->taken;
	if (has_number)
		*number = ring->numbers[ring->taken++ % PLACES];
	pthread_mutex_unlock(&ring->lock);
	if (has_number)
		upoll_object_wake(ring->fd, EPOLLOUT);
	return has_number;
}
/* ANCHOR_END: change */

static void *produce(void *context)
{
	struct ring *ring = context;
	struct pollfd room = {.fd = ring->fd, .events = POLLOUT};
	int number;

	for (number = 1; number <= NUMBERS; number++)
		while (!ring_put(ring, number))
			check(upoll_poll(&room, 1, -1) == 1, "poll");
	return NULL;
}

/* Reads squares until it has all, and closes the connection. */
static void *receive(void *context)
{
	int socket = *(int *)context, received;
	long long square, *sum = calloc(1, sizeof *sum);

	check(sum != NULL, "calloc");
	for (received = 0; received < NUMBERS; received++) {
		check(recv(socket, &square, sizeof square, MSG_WAITALL) == sizeof square, "recv");
		*sum += square;
	}
	close(socket);
	return sum;
}

int main(void)
{
	struct ring *ring = ring_create();
	pthread_t producer, receiver;
	int ends[2], number, is_over = 0;
	void *sum;

	/* The C library's, without upoll_ or UPOLL_REDIRECT: the kernel's. */
	check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
	check(pthread_create(&producer, NULL, produce, ring) == 0, "pthread_create");
	check(pthread_create(&receiver, NULL, receive, &ends[1]) == 0, "pthread_create");

	/* ANCHOR: wait */
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = ring->fd}, ready[2];
	int set = upoll_epoll_create1(EPOLL_CLOEXEC);

	check(upoll_epoll_ctl(set, EPOLL_CTL_ADD, ring->fd, &event) == 0, "adding the ring");
	event.events = EPOLLRDHUP | EPOLLET;
	event.data.fd = ends[0];
	check(upoll_epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0, "adding the socket");
	while (!is_over) {
		int at, count = upoll_epoll_wait(set, ready, 2, -1);

		check(count > 0, "waiting");
		for (at = 0; at < count; at++) {
			if (ready[at].data.fd == ends[0])
				is_over = 1;
			/* Edge-triggered: until the ring is empty. */
			while (ready[at].data.fd == ring->fd && ring_take(ring, &number)) {
				long long square = (long long)number * number;
				check(send(ends[0], &square, sizeof square, 0) == sizeof square, "send");
			}
		}
	}
	/* ANCHOR_END: wait */

	pthread_join(producer, NULL);
	pthread_join(receiver, &sum);
	printf("the sum of the squares is %lld\n", *(long long *)sum);
	is_over = *(long long *)sum == (long long)NUMBERS * (NUMBERS + 1) * (2 * NUMBERS + 1) / 6;
	free(sum);
	upoll_close(set);
	upoll_close(ring->fd);
	close(ends[0]);
	return !is_over;
}
