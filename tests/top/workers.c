/* Threads that wait in sets, each for as many events as it is told, and a child with a set of its own. Each step ends
 * with a line on standard output, and the next one begins with a line on standard input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t taken;
static sem_t rest;

struct worker {
    int set;
    int counter;
    int events;
    pid_t thread;
    pthread_t handle;
};

static void check(int is_right, const char *what)
{
    if (!is_right) {
        perror(what);
        exit(1);
    }
}

static int set_of(int fd)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN };
    check(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "a set");
    return set;
}

static void *work(void *argument)
{
    struct worker *own = argument;
    own->thread = (pid_t)syscall(SYS_gettid);
    for (int at = 0; at < own->events; at++) {
        struct epoll_event event;
        uint64_t value;
        check(epoll_wait(own->set, &event, 1, -1) == 1, "an event");
        check(read(own->counter, &value, sizeof value) == sizeof value, "a value");
        sem_post(&taken);
    }
    /* It has not ended as long as it is looked at. */
    sem_wait(&rest);
    return NULL;
}

static void feed(struct worker *worker)
{
    check(pthread_create(&worker->handle, NULL, work, worker) == 0, "a thread");
    for (int at = 0; at < worker->events; at++) {
        uint64_t one = 1;
        check(write(worker->counter, &one, sizeof one) == sizeof one, "a write");
        sem_wait(&taken);
    }
}

static void step(void)
{
    char line[16];
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(1);
}

int main(void)
{
    struct worker workers[2] = { { .events = 3 }, { .events = 1 } };
    int ends[2], more[2];
    int counter = eventfd(0, EFD_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN };
    sem_init(&taken, 0, 0);
    sem_init(&rest, 0, 0);
    /* A set with members in the kernel, too, of which one is closed. */
    check(counter >= 0 && pipe2(ends, O_CLOEXEC) == 0 && pipe2(more, O_CLOEXEC) == 0, "pipes");
    int set = set_of(ends[0]);
    check(epoll_ctl(set, EPOLL_CTL_ADD, counter, &event) == 0, "a member");
    check(epoll_ctl(set, EPOLL_CTL_ADD, more[0], &event) == 0, "a member");
    close(more[0]);
    for (int at = 0; at < 2; at++) {
        workers[at].set = set;
        workers[at].counter = counter;
        feed(&workers[at]);
    }
    printf("%d %d %d %d\n", (int)getpid(), set, (int)workers[0].thread, (int)workers[1].thread);
    step();
    /* A second set, and then none but that one. */
    int other_counter = eventfd(1, EFD_CLOEXEC);
    int other = set_of(other_counter);
    check(epoll_wait(other, &event, 1, -1) == 1, "an event");
    printf("%d\n", other);
    step();
    for (int at = 0; at < 2; at++)
        sem_post(&rest);
    for (int at = 0; at < 2; at++)
        pthread_join(workers[at].handle, NULL);
    close(set);
    printf("closed\n");
    step();
    pid_t child = fork();
    check(child >= 0, "a child");
    if (child == 0) {
        int own = set_of(eventfd(1, EFD_CLOEXEC));
        check(epoll_wait(own, &event, 1, -1) == 1, "an event");
        printf("%d %d\n", (int)getpid(), own);
        step();
        _exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child's end");
    printf("ended\n");
    step();
    return 0;
}
