// End a server that was told to stop, whatever it computes.
//
// Python handles a signal between two of its instructions, which may be minutes apart. Here a first
// signal starts a timer and goes on to Python's handler; a second one, or the timer, ends the
// process at once. Handlers call nothing but what POSIX lets them call.

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

namespace {

constexpr int MOST = 65;  // signals of a system

std::atomic<int> num_heard{0};
std::atomic<unsigned> longest_s{0};
struct sigaction before[MOST];  // what Python does

void end_now(const char* words) {
    pollfd errors{STDERR_FILENO, POLLOUT, 0};  // a log that nobody reads holds nothing up
    if (poll(&errors, 1, 0) == 1 && (errors.revents & POLLOUT)) {
        if (write(STDERR_FILENO, words, std::strlen(words)) < 0) _exit(0);
    }
    _exit(0);
}

void on_signal(int number) {
    if (num_heard.fetch_add(1) > 0) end_now("ended at once, by a second signal\n");
    alarm(longest_s);
    const auto next = before[number].sa_handler;
    if (next != SIG_DFL && next != SIG_IGN) next(number);
}

void on_alarm(int) { end_now("ended with work in hand: the time to stop in is over\n"); }

void handle(int number, void (*handler)(int), struct sigaction* old) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK;  // as Python's
    sigaction(number, &action, old);
}

}  // namespace

extern "C" {

// From now on the process ends `seconds` after the first of these signals, and at the second.
void duodec_end_after(const int64_t* numbers, int64_t count, int64_t seconds) {
    num_heard = 0;
    longest_s = unsigned(seconds);
    handle(SIGALRM, on_alarm, nullptr);
    for (int64_t i = 0; i < count; ++i) {
        const int number = int(numbers[i]);
        if (number > 0 && number < MOST) handle(number, on_signal, &before[number]);
    }
}
}
